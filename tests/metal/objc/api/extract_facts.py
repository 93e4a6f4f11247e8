"""Makes facts.json: what Apple's metadata says of everything in our headers.

    pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform macosx_10_13_universal2 pyobjc-framework-Metal==12.2.2
    pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform macosx_14_0_arm64 mlx-metal==0.32.4
    unzip both into one folder
    python -m tests.metal.objc.api.extract_facts FOLDER

pyobjc-framework-Metal (MIT) is made from the macOS 26.5 SDK: constants, structs, and selectors with
types, whatever class they are of. metal-cpp inside mlx-metal (Apache-2.0) knows methods by class.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .header import FACTS, read_headers
from .metal_cpp import MetalCpp


def load_pyobjc(path: Path) -> tuple[dict[str, int], dict[str, list[str]], dict[str, Any]]:
    """Constants, fields of structs, selectors with their metadata, of a _metadata.py."""
    structs: dict[str, list[str]] = {}
    selectors: dict[str, Any] = {}
    objc = types.ModuleType("objc")

    def create_struct(name: str, encoding: bytes, fields: list[str], *_: object) -> None:
        structs[name.split(".")[-1]] = fields

    def register(_: bytes, selector: bytes, metadata: Any) -> None:
        selectors.setdefault(selector.decode(), metadata)

    known = {
        "arch": "arm64",
        "createStructType": create_struct,
        "registerMetaDataForSelector": register,
        "ExpressionsMapping": dict,
    }
    vars(objc).update(known, __getattr__=lambda _: lambda *a, **k: None)
    sys.modules["objc"] = objc
    spec = importlib.util.spec_from_file_location("metadata", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    constants = {m[1]: int(m[2]) for m in re.finditer(r"(\w+)@(-?\d+)", module.enums)}
    return constants, structs, selectors


def encodings(metadata: Any, num_arguments: int) -> list[str]:
    """Types of the result and of the arguments; "?" where the metadata has none."""

    def encoding(item: dict[str, Any]) -> str:
        if "callable" in item:
            return "@?"
        text = item.get("type", "?")
        text = (text.decode() if isinstance(text, bytes) else text).lstrip("nNoOrRV")
        text = {"z": "C"}.get(text, text)  # pyobjc's mark of a char that is a number
        return "^" if text[:1] in ("^", "*") else text

    arguments = metadata.get("arguments", {})
    return [
        encoding(metadata.get("retval", {})),
        *(encoding(arguments.get(index + 2, {})) for index in range(num_arguments)),
    ]


def methods(names: list[str], metal_cpp: MetalCpp) -> Iterator[tuple[str, list[str] | None]]:
    """Of "MTLDevice name": its types; None if the class lacks it. Only where metal-cpp, which is
    older than the SDK of the other package, has the selector at all.
    """
    for name in sorted(names):
        owner, selector = name.split()
        if selector in metal_cpp.selectors:
            yield name, metal_cpp.find(owner, selector)


def main(folder: Path) -> None:
    constants, structs, metadata = load_pyobjc(folder / "Metal" / "_metadata.py")
    metal_cpp = MetalCpp(folder / "mlx" / "include" / "metal_cpp" / "Metal")
    headers = read_headers()
    used = {method.split()[1] for method in headers["methods"]}
    facts = {
        "methods": dict(methods(headers["methods"], metal_cpp)),
        "selectors": {
            name: encodings(metadata[name], name.count(":"))
            for name in sorted(used & metadata.keys())
        },
        "constants": {n: constants[n] for n in sorted(headers["constants"].keys() & constants)},
        "structs": {n: structs[n] for n in sorted(headers["structs"].keys() & structs)},
    }
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
