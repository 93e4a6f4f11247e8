"""shim/mtlq.h for ctypes: functions, structures, record layouts. Statuses become exceptions."""

from __future__ import annotations

import sys
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DeviceError, LimitError, MtlqError, OutOfMemory

ABI_MAJOR = 1
ABI_MINOR = 1

OK = 0
E_ARGUMENT = 1
E_NOMEM = 2
E_UNSUPPORTED = 3
E_NOT_FOUND = 4
E_LIMIT = 5
E_DEVICE = 6
E_LOST = 7
E_TIMEOUT = 8

NO_ID = 0xFFFFFFFF
FOREVER = 0xFFFFFFFFFFFFFFFF

DEVICE_PROFILE = 1
MAP = 0
UNMAP = 1
BARRIER = 1

DISPATCH = np.dtype(
    [
        ("pipeline", "u4"),
        ("flags", "u4"),
        ("grid", "u4", 3),
        ("group", "u4", 3),
        ("grid_buffer", "u4"),
        ("grid_offset_bytes", "u4"),
        ("first_binding", "u4"),
        ("num_bindings", "u4"),
        ("args_offset", "u4"),
        ("args_bytes", "u4"),
        ("reserved", "u4", 2),
    ]
)
BINDING = np.dtype([("buffer", "u4"), ("reserved", "u4"), ("offset_bytes", "u8")])
MAP_OP = np.dtype(
    [
        ("kind", "u4"),
        ("buffer", "u4"),
        ("heap", "u4"),
        ("reserved", "u4"),
        ("page", "u8"),
        ("heap_page", "u8"),
        ("num_pages", "u8"),
    ]
)


class DeviceDesc(Structure):
    """mtlq_device_desc."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("num_threads", c_uint32),
        ("reserved", c_uint32),
        ("isa", c_char_p),
    ]


class DeviceInfo(Structure):
    """mtlq_device_info."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_threads", c_uint32),
        ("name", c_char * 64),
        ("isa", c_char * 16),
        ("memory_bytes", c_uint64),
        ("max_buffer_bytes", c_uint64),
        ("wrap_alignment_bytes", c_uint64),
        ("sparse_page_bytes", c_uint32 * 4),
        ("max_mappings", c_uint32),
        ("reserved", c_uint32),
        ("page_table_reason", c_char * 128),
    ]


class Constant(Structure):
    """mtlq_constant."""

    _fields_ = [("index", c_uint32), ("value", c_uint32)]


class PlanDesc(Structure):
    """mtlq_plan_desc."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("num_dispatches", c_uint32),
        ("num_bindings", c_uint32),
        ("num_args_bytes", c_uint32),
        ("dispatches", c_void_p),
        ("bindings", c_void_p),
        ("args", c_char_p),
    ]


_OUT = POINTER(c_void_p)  # a handle or an address

# Functions that return a status, without their prefix mtlq_.
_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "device_open": (c_char_p, POINTER(DeviceDesc), _OUT),
    "device_get_info": (c_void_p, POINTER(DeviceInfo)),
    "buffer_create": (c_void_p, c_uint64, _OUT),
    "buffer_wrap": (c_void_p, c_void_p, c_uint64, _OUT),
    "sparse_create": (c_void_p, c_uint64, c_uint32, _OUT),
    "buffer_contents": (c_void_p, _OUT),
    "heap_create": (c_void_p, c_uint64, c_uint32, _OUT),
    "heap_contents": (c_void_p, _OUT),
    "heap_free": (c_void_p,),
    "map": (c_void_p, c_void_p, c_uint32),
    "library_create": (c_void_p, c_char_p, c_uint64, _OUT),
    "pipeline_create": (c_void_p, c_char_p, POINTER(Constant), c_uint32, _OUT),
    "plan_create": (c_void_p, POINTER(PlanDesc), _OUT),
    "plan_times": (c_void_p, c_void_p, c_uint32),
    "submit": (c_void_p, _OUT, c_uint32, c_void_p, c_uint32, POINTER(c_uint64)),
    "wait": (c_void_p, c_uint64, c_uint64),
    "ticket_time": (c_void_p, c_uint64, POINTER(c_uint64)),
    "encoder_create": (c_void_p, _OUT),
    "encoder_dispatch": (c_void_p, c_void_p, c_void_p, c_void_p),
    "encoder_commit": (c_void_p, POINTER(c_uint64)),
}
_INFALLIBLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "abi_version": (c_uint32, ()),
    "last_error": (c_char_p, ()),
    "device_close": (None, (c_void_p,)),
    "buffer_id": (c_uint32, (c_void_p,)),
    "buffer_free": (None, (c_void_p,)),
    "heap_id": (c_uint32, (c_void_p,)),
    "library_free": (None, (c_void_p,)),
    "pipeline_id": (c_uint32, (c_void_p,)),
    "pipeline_free": (None, (c_void_p,)),
    "plan_free": (None, (c_void_p,)),
    "encoder_free": (None, (c_void_p,)),
}

_EXCEPTIONS = {E_NOMEM: OutOfMemory, E_LIMIT: LimitError}


def load(path: Path) -> CDLL:
    """The shim at `path`, with types declared and statuses turned into exceptions."""
    try:
        library = CDLL(str(path))
    except OSError as error:
        raise MtlqError(f"{path}: {error}; build it with: pip install .") from error
    version = library.mtlq_abi_version()
    if version >> 16 != ABI_MAJOR or version & 0xFFFF < ABI_MINOR:
        raise MtlqError(
            f"{path} has ABI {version >> 16}.{version & 0xFFFF}, this package needs "
            f"{ABI_MAJOR}.{ABI_MINOR}; build both together"
        )

    def check(status: Any, function: Any, arguments: Any) -> Any:
        if status:
            exception = _EXCEPTIONS.get(status & 0xFF, DeviceError)
            raise exception(library.mtlq_last_error().decode("utf-8", "replace"), status=status)
        return status

    for name, argtypes in _FALLIBLE.items():
        function = library[f"mtlq_{name}"]
        function.argtypes, function.restype, function.errcheck = argtypes, c_int32, check
        setattr(library, function.__name__, function)
    for name, (restype, argtypes) in _INFALLIBLE.items():
        function = library[f"mtlq_{name}"]
        function.argtypes, function.restype = argtypes, restype
        setattr(library, function.__name__, function)
    return library


lib = load(Path(__file__).with_name(f"libmtlq.{'dylib' if sys.platform == 'darwin' else 'so'}"))
