"""Compiles the shim for macOS on Linux and links it, with our own headers and library stubs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
SDK = HERE.parent / "sdk"
COMPILER, LINKER, NM = "clang-22", "ld64.lld-22", "llvm-nm-22"

_COMMON = ["--target=arm64-apple-macos14.0", "-std=c11", "-O2", "-fvisibility=hidden"]
_COMMON += ["-DMTLQ_METAL", "-Wall", "-Wextra", "-Werror", "-nostdlibinc", "-fexceptions"]
_COMMON += ["-isystem", SDK / "libc", "-isystem", SDK]
OBJC = [*_COMMON, "-fobjc-arc", "-fobjc-arc-exceptions", "-fblocks", "-fobjc-exceptions"]

FRAMEWORKS = "/System/Library/Frameworks"
LIBRARIES = {  # install name -> symbols of functions and data, classes
    f"{FRAMEWORKS}/Metal.framework/Versions/A/Metal": (
        "_MTLCreateSystemDefaultDevice",
        "MTLHeapDescriptor MTLCompileOptions MTLFunctionConstantValues MTLResidencySetDescriptor "
        "MTLBinaryArchiveDescriptor MTLComputePipelineDescriptor MTLCaptureDescriptor "
        "MTLCaptureManager",
    ),
    f"{FRAMEWORKS}/Foundation.framework/Versions/C/Foundation": (
        "",
        "NSString NSURL NSFileManager NSProcessInfo",
    ),
    f"{FRAMEWORKS}/CoreFoundation.framework/Versions/A/CoreFoundation": (
        "___CFConstantStringClassReference",
        "NSArray",
    ),
    "/usr/lib/libobjc.A.dylib": (
        "_objc_msgSend _objc_msgSendSuper2 _objc_retain _objc_release _objc_autorelease "
        "_objc_autoreleasePoolPush _objc_autoreleasePoolPop _objc_storeStrong _objc_retainBlock "
        "_objc_retainAutoreleasedReturnValue _objc_claimAutoreleasedReturnValue "
        "_objc_unsafeClaimAutoreleasedReturnValue _objc_autoreleaseReturnValue "
        "_objc_retainAutoreleaseReturnValue _objc_retainAutorelease _objc_alloc _objc_alloc_init "
        "_objc_opt_new _objc_opt_self __objc_empty_cache _objc_begin_catch _objc_end_catch "
        "_objc_exception_rethrow _objc_terminate ___objc_personality_v0 "
        + " ".join(f"_objc_{verb}_x{n}" for verb in ("retain", "release") for n in range(31)),
        "NSObject",
    ),
    "/usr/lib/libSystem.B.dylib": (
        "dyld_stub_binder _malloc _calloc _realloc _aligned_alloc _free _getenv _memcpy _memmove "
        "_memset _bzero _strcmp _strlen _strncpy _snprintf _vsnprintf _rename _clock_gettime "
        "_getpagesize _getpid __NSConcreteStackBlock __availability_version_check "
        "__tlv_bootstrap ___stack_chk_fail ___stack_chk_guard __Unwind_Resume "
        "_pthread_mutex_init _pthread_mutex_destroy _pthread_mutex_lock _pthread_mutex_unlock "
        "_pthread_cond_init _pthread_cond_destroy _pthread_cond_broadcast _pthread_cond_wait "
        "_pthread_cond_timedwait",
        "",
    ),
}


def is_missing() -> str | None:
    """Why nothing can be linked for macOS here, or None."""
    for tool in (COMPILER, LINKER, NM):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (packages clang-22, lld-22 and llvm-22)"
    return None


def compile_object(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """An arm64 macOS object of a .c or .m file."""
    flags = OBJC if source.suffix == ".m" else _COMMON
    command = [COMPILER, *flags, f"-I{ROOT / 'shim' / 'metal'}", "-c", source, "-o", target]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def write_stub(path: Path, install_name: str, symbols: str, classes: str) -> None:
    """A text-based stub that says what a library of macOS exports: only what the shim uses."""
    lines = ["--- !tapi-tbd", "tbd-version: 4", "targets: [ arm64-macos ]"]
    lines += [f"install-name: '{install_name}'", "exports:", "  - targets: [ arm64-macos ]"]
    if symbols:
        lines.append(f"    symbols: [ {', '.join(symbols.split())} ]")
    if classes:
        lines.append(f"    objc-classes: [ {', '.join(classes.split())} ]")
    path.write_text("\n".join([*lines, "...", ""]))


def link_dylib(objects: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """folder/libmtlq.dylib of the objects."""
    stubs = []
    for install_name, (symbols, classes) in LIBRARIES.items():
        stub = folder / f"{Path(install_name).name}.tbd"
        write_stub(stub, install_name, symbols, classes)
        stubs.append(stub)
    command = [LINKER, "-arch", "arm64", "-platform_version", "macos", "14.0", "26.0", "-dylib"]
    command += ["-install_name", "@rpath/libmtlq.1.dylib", "-adhoc_codesign"]
    command += [*map(str, objects), *map(str, stubs), "-o", str(folder / "libmtlq.dylib")]
    return subprocess.run(command, capture_output=True, text=True)


def exported_symbols(dylib: Path) -> set[str]:
    done = subprocess.run([NM, "-gU", str(dylib)], capture_output=True, text=True, check=True)
    return {line.split()[-1].removeprefix("_") for line in done.stdout.splitlines() if line}
