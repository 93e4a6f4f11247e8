"""A device and its objects: the shim's handles with Python's lifetimes.

free() and close() may come in any order and more than once. Arrays over a buffer keep it from being
collected, but must not be used after its free() or its device's close().
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import byref, c_ubyte, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import abi
from .abi import lib
from .errors import DeviceError

Constants = tuple[tuple[int, int], ...]  # (index, value) of function constants


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is and allows."""

    name: str  # of the hardware
    isa: str  # of the kernels in use
    num_threads: int
    memory_bytes: int
    max_buffer_bytes: int
    wrap_alignment_bytes: int
    sparse_page_bytes: tuple[int, ...]  # ascending
    max_mappings: int  # of the operating system, for buffers and heaps; 0 = unlimited
    page_table_reason: str  # why kernels see sparse buffers as page tables; "": as address space


class _Object(ABC):
    """A handle of the shim, released once."""

    def __init__(self, device: Device, handle: c_void_p):
        self._device = device
        self._handle: c_void_p | None = handle
        device._objects.add(self)

    @property
    def handle(self) -> c_void_p:
        if self._handle is None:
            raise ValueError(f"this {type(self).__name__} was freed")
        return self._handle

    def free(self) -> None:
        """Releases it; a second call does nothing."""
        handle, self._handle = self._handle, None  # first: Ctrl-C may come as the release returns
        if handle is None:
            return
        try:
            self._release(handle)
        except DeviceError:
            self._handle = handle
            raise

    @abstractmethod
    def _release(self, handle: c_void_p) -> None:
        """Gives the handle back to the shim."""


class _Memory(_Object):
    """num_bytes of memory that the process can address."""

    def __init__(self, device: Device, handle: c_void_p, num_bytes: int):
        super().__init__(device, handle)
        self.num_bytes = num_bytes

    def array(
        self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset_bytes: int = 0
    ) -> npt.NDArray[Any]:
        """A view of the contents. Touching an unmapped page of a sparse buffer is a fault."""
        dtype = np.dtype(dtype)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if offset_bytes < 0 or num_bytes < 0 or offset_bytes + num_bytes > self.num_bytes:
            raise ValueError(
                f"{dtype} {shape} at byte {offset_bytes} takes {num_bytes} bytes of the "
                f"{self.num_bytes} there are"
            )
        memory: Any = (c_ubyte * num_bytes).from_address(self._address() + offset_bytes)
        memory._owner = self
        return np.ndarray(shape, dtype, buffer=memory)

    @abstractmethod
    def _address(self) -> int:
        """Where the contents begin in this process."""


class Buffer(_Memory):
    """Memory that dispatches bind: shared, wrapped or sparse."""

    def __init__(self, device: Device, handle: c_void_p, num_bytes: int, wrapped: object = None):
        super().__init__(device, handle, num_bytes)
        self.id: int = lib.mtlq_buffer_id(handle)
        self._wrapped = wrapped  # keeps the caller's memory alive

    def __del__(self) -> None:
        self.free()

    def _address(self) -> int:
        address = c_void_p()
        lib.mtlq_buffer_contents(self.handle, byref(address))
        return address.value or 0

    def _release(self, handle: c_void_p) -> None:
        lib.mtlq_buffer_free(handle)
        self._wrapped = None


class Heap(_Memory):
    """Physical pages for sparse buffers. It lives until free() or its device's close(), since map
    operations name it by id only."""

    def __init__(self, device: Device, handle: c_void_p, num_bytes: int):
        super().__init__(device, handle, num_bytes)
        self.id: int = lib.mtlq_heap_id(handle)
        device._heaps.add(self)

    def _address(self) -> int:
        address = c_void_p()
        lib.mtlq_heap_contents(self.handle, byref(address))
        return address.value or 0

    def _release(self, handle: c_void_p) -> None:
        lib.mtlq_heap_free(handle)  # raises DeviceError while a page is mapped
        self._device._heaps.discard(self)


class Pipeline(_Object):
    """A kernel of the device."""

    def __init__(self, device: Device, handle: c_void_p, name: str):
        super().__init__(device, handle)
        self.name = name
        self.id: int = lib.mtlq_pipeline_id(handle)

    def _release(self, handle: c_void_p) -> None:
        lib.mtlq_pipeline_free(handle)


class Plan(_Object):
    """Dispatches submitted together. It keeps the buffers and kernels that it names alive."""

    def __init__(self, device: Device, handle: c_void_p, num_dispatches: int):
        super().__init__(device, handle)
        self.num_dispatches = num_dispatches

    def __del__(self) -> None:
        self.free()

    def times(self) -> npt.NDArray[np.uint64]:
        """Nanoseconds [num_dispatches] spent so far, on a device opened with profile=True."""
        times = np.zeros(self.num_dispatches, np.uint64)
        lib.mtlq_plan_times(self.handle, times.ctypes.data, self.num_dispatches)
        return times

    def _release(self, handle: c_void_p) -> None:
        lib.mtlq_plan_free(handle)


class Device:
    """A processor that executes plans. One thread at a time may use it, except for wait()."""

    def __init__(self, handle: c_void_p, kind: str):
        self.kind = kind  # "cpu" or "metal"
        self._handle: c_void_p | None = handle
        self._objects: weakref.WeakSet[_Object] = weakref.WeakSet()
        self._heaps: set[Heap] = set()
        self._pipelines: dict[tuple[str, str | None, Constants], Pipeline] = {}
        self._libraries: dict[str | None, c_void_p] = {}
        self.info = self._read_info()

    @classmethod
    def open(
        cls,
        name: str = "cpu",
        *,
        num_threads: int = 0,
        isa: str | None = None,
        profile: bool = False,
    ) -> Device:
        """Opens a device by name.

        num_threads of 0 takes every usable core; isa ("avx512", "avx2", "neon", "portable") is by
        default the best that the machine has; profile makes Plan.times() available.
        """
        if num_threads < 0:
            raise ValueError(f"num_threads is {num_threads}; give 0 for every core, or a count")
        desc = abi.DeviceDesc(
            struct_size=sizeof(abi.DeviceDesc),
            flags=abi.DEVICE_PROFILE if profile else 0,
            num_threads=num_threads,
            isa=isa.encode() if isa is not None else None,
        )
        handle = c_void_p()
        lib.mtlq_device_open(name.encode(), byref(desc), byref(handle))
        return cls(handle, name)

    @property
    def handle(self) -> c_void_p:
        if self._handle is None:
            raise ValueError("this Device was closed")
        return self._handle

    def close(self) -> None:
        """Frees every object of the device, and the device."""
        if self._handle is None:
            return
        for kind in (Plan, Buffer, Heap, Pipeline):
            for item in [item for item in self._objects if isinstance(item, kind)]:
                item.free()
        self._pipelines.clear()
        while self._libraries:
            lib.mtlq_library_free(self._libraries.popitem()[1])
        handle, self._handle = self._handle, None
        lib.mtlq_device_close(handle)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_libraries", None) is not None:
            self.close()

    # ---- memory --------------------------------------------------------------------------------

    def buffer(self, num_bytes: int) -> Buffer:
        """Zero-filled memory; physical pages come on first touch."""
        handle = c_void_p()
        lib.mtlq_buffer_create(self.handle, num_bytes, byref(handle))
        return Buffer(self, handle, num_bytes)

    def wrap(self, memory: Any) -> Buffer:
        """A buffer over memory of the caller (mmap, contiguous ndarray, bytes), without a copy."""
        view = np.frombuffer(memory, np.uint8)
        handle = c_void_p()
        lib.mtlq_buffer_wrap(self.handle, view.ctypes.data, view.nbytes, byref(handle))
        return Buffer(self, handle, view.nbytes, view)

    def sparse(self, num_bytes: int, page_bytes: int) -> Buffer:
        """Address space with nothing behind it until map()."""
        handle = c_void_p()
        lib.mtlq_sparse_create(self.handle, num_bytes, page_bytes, byref(handle))
        return Buffer(self, handle, num_bytes)

    def heap(self, num_bytes: int, page_bytes: int) -> Heap:
        """Physical memory in pages of page_bytes, committed on first touch."""
        handle = c_void_p()
        lib.mtlq_heap_create(self.handle, num_bytes, page_bytes, byref(handle))
        return Heap(self, handle, num_bytes)

    def map(self, ops: npt.NDArray[np.void]) -> None:
        """Applies map operations (abi.MAP_OP [n]) in order; all of them are checked first."""
        records = _records(ops, abi.MAP_OP)
        lib.mtlq_map(self.handle, records.ctypes.data, len(records))

    # ---- kernels and plans ---------------------------------------------------------------------

    def pipeline(self, name: str, source: str | None = None, constants: Constants = ()) -> Pipeline:
        """The kernel of that name; DeviceError with status abi.E_NOT_FOUND if there is none.

        source: text of its library, compiled once (metal); None: the kernels built in (cpu).
        constants: (index, value) of its function constants.
        """
        key = name, source, constants
        if key not in self._pipelines:
            records = (abi.Constant * len(constants))(*(abi.Constant(*pair) for pair in constants))
            handle = c_void_p()
            lib.mtlq_pipeline_create(
                self._library(source), name.encode(), records, len(constants), byref(handle)
            )
            self._pipelines[key] = Pipeline(self, handle, name)
        return self._pipelines[key]

    def _library(self, source: str | None) -> c_void_p:
        if source not in self._libraries:
            text = source.encode() if source is not None else None
            handle = c_void_p()
            lib.mtlq_library_create(self.handle, text, len(text or b""), byref(handle))
            self._libraries[source] = handle
        return self._libraries[source]

    def plan(
        self, dispatches: npt.NDArray[np.void], bindings: npt.NDArray[np.void], args: bytes
    ) -> Plan:
        """A plan from records (abi.DISPATCH [n], abi.BINDING [m]) and the kernels' arguments."""
        dispatches = _records(dispatches, abi.DISPATCH)
        bindings = _records(bindings, abi.BINDING)
        desc = abi.PlanDesc(
            struct_size=sizeof(abi.PlanDesc),
            num_dispatches=len(dispatches),
            num_bindings=len(bindings),
            num_args_bytes=len(args),
            dispatches=dispatches.ctypes.data,
            bindings=bindings.ctypes.data,
            args=args,
        )
        handle = c_void_p()
        lib.mtlq_plan_create(self.handle, byref(desc), byref(handle))
        return Plan(self, handle, len(dispatches))

    def submit(self, plans: Sequence[Plan], ops: npt.NDArray[np.void] | None = None) -> int:
        """Map operations, then plans, in order; returns a ticket."""
        handles = (c_void_p * len(plans))(*(plan.handle for plan in plans))
        records = _records(ops, abi.MAP_OP) if ops is not None else _NO_OPS
        ticket = c_uint64()
        lib.mtlq_submit(
            self.handle, handles, len(plans), records.ctypes.data, len(records), byref(ticket)
        )
        return ticket.value

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        """Returns when the ticket's work is done, or raises DeviceError (status abi.E_TIMEOUT)."""
        timeout_ns = abi.FOREVER if timeout_s is None else int(timeout_s * 1e9)
        lib.mtlq_wait(self.handle, ticket, timeout_ns)

    def ticket_time(self, ticket: int) -> int:
        """Nanoseconds that the device spent on a finished ticket, among the last 64."""
        nanoseconds = c_uint64()
        lib.mtlq_ticket_time(self.handle, ticket, byref(nanoseconds))
        return nanoseconds.value

    def _read_info(self) -> DeviceInfo:
        info = abi.DeviceInfo(struct_size=sizeof(abi.DeviceInfo))
        lib.mtlq_device_get_info(self.handle, byref(info))
        return DeviceInfo(
            name=info.name.decode("utf-8", "replace"),
            isa=info.isa.decode(),
            num_threads=info.num_threads,
            memory_bytes=info.memory_bytes,
            max_buffer_bytes=info.max_buffer_bytes,
            wrap_alignment_bytes=info.wrap_alignment_bytes,
            sparse_page_bytes=tuple(size for size in info.sparse_page_bytes if size),
            max_mappings=info.max_mappings,
            page_table_reason=info.page_table_reason.decode(),
        )


def _records(array: npt.NDArray[np.void], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if array.dtype != dtype or array.ndim != 1:
        raise TypeError(f"expected a vector of {dtype}, got {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


_NO_OPS = np.zeros(0, abi.MAP_OP)
