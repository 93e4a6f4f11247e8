"""mtlq.h is C11 and C++11, and says the same as abi.py and as the library exports."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from header import EXPORTS, FIELDS, MACROS, compiler, measure, prototypes

from mtlqwen import abi

STRUCTS = {
    "mtlq_device_desc": abi.DeviceDesc,
    "mtlq_device_info": abi.DeviceInfo,
    "mtlq_plan_desc": abi.PlanDesc,
    "mtlq_constant": abi.Constant,
    "mtlq_dispatch": abi.DISPATCH,
    "mtlq_binding": abi.BINDING,
    "mtlq_map_op": abi.MAP_OP,
}


def layout(struct: type[ctypes.Structure] | np.dtype) -> dict[str, tuple[int, int]]:
    """Offset and size of each field."""
    if isinstance(struct, np.dtype):
        return {name: (struct.fields[name][1], struct[name].itemsize) for name in struct.names}
    fields = [(name, getattr(struct, name)) for name, *_ in struct._fields_]
    return {name: (field.offset, field.size) for name, field in fields}


def size(struct: type[ctypes.Structure] | np.dtype) -> int:
    return struct.itemsize if isinstance(struct, np.dtype) else ctypes.sizeof(struct)


@pytest.mark.parametrize(("suffix", "standard"), [("c", "c11"), ("cc", "c++11")])
def test_header_compiles_and_equals_abi(tmp_path, suffix, standard):
    said = measure(tmp_path, suffix, standard)
    for name, struct in STRUCTS.items():
        assert said[name] == (size(struct),)
        for field, place in layout(struct).items():
            assert said[f"{name}.{field}"] == place, f"{name}.{field}"
    for macro in MACROS:
        assert said[macro] == (getattr(abi, macro.removeprefix("MTLQ_")),), macro


def test_every_field_of_the_header_is_compared():
    assert {name: list(layout(struct)) for name, struct in STRUCTS.items()} == FIELDS


def test_library_exports_the_list_and_nothing_else():
    path = Path(abi.lib._name)
    flags = ["-gU"] if path.suffix == ".dylib" else ["-D", "--defined-only"]
    symbols = subprocess.check_output([compiler("nm"), *flags, str(path)], text=True)
    names = {line.split()[-1].removeprefix("_") for line in symbols.splitlines()}
    names = {name for name in names if not name.startswith("_")}  # of sanitizers and coverage
    assert names == set(EXPORTS)


def test_list_header_and_abi_name_the_same_functions():
    mirrored = [f"mtlq_{name}" for name in (*abi._FALLIBLE, *abi._INFALLIBLE)]
    assert sorted(prototypes()) == sorted(EXPORTS) == sorted(mirrored)
