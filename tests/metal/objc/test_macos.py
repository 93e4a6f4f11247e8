"""The shim as a macOS library: it compiles with ARC, guards what is new, exports the API."""

from __future__ import annotations

import subprocess

import pytest

from .macos import link

SOURCES = [
    *sorted(link.ROOT.glob("shim/*.c")),
    *sorted(link.ROOT.glob("shim/metal/*.m")),
    link.HERE / "no_cpu.c",
]


@pytest.fixture(scope="module")
def dylib(tmp_path_factory):
    reason = link.is_missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("macos")
    objects = []
    for source in SOURCES:
        objects.append(folder / f"{source.name}.o")
        done = link.compile_object(source, objects[-1])
        assert done.returncode == 0, done.stderr
    done = link.link_dylib(objects, folder)
    assert done.returncode == 0, done.stderr
    return folder / "libmtlq.dylib"


def test_shim_links_to_an_arm64_library_that_exports_the_list(dylib):
    magic = dylib.read_bytes()[:16]
    assert magic[:4] == bytes.fromhex("cffaedfe")  # MH_MAGIC_64
    assert magic[4:8] == bytes.fromhex("0c000001")  # CPU_TYPE_ARM64
    exports = set((link.ROOT / "shim" / "exports.txt").read_text().split())
    assert link.exported_symbols(dylib) == exports


def test_each_symbol_comes_from_the_library_that_has_it(dylib):
    done = subprocess.run([link.NM, "-um", str(dylib)], capture_output=True, text=True, check=True)
    from_library = dict(line.split()[-3::2] for line in done.stdout.splitlines() if "(from" in line)
    assert from_library["_MTLCreateSystemDefaultDevice"] == "Metal)"
    assert from_library["_OBJC_CLASS_$_NSString"] == "Foundation)"
    assert from_library["_OBJC_CLASS_$_NSArray"] == "CoreFoundation)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[gpu newMTL4CommandQueue];", "only available on macOS 26.0 or newer"),
        (
            "if (@available(macOS 26.0, *)) (void)gpu.supportsPlacementSparse;",
            "only available on macOS 26.4 or newer",
        ),
        ("[gpu newComandQueue];", "did you mean 'newCommandQueue'"),
        ("id<MTLBuffer> b = [gpu newBufferWithLength:4]; (void)b;", "instance method"),
        ("if (@available(macOS 26.0, *)) [gpu newMTL4CommandQueue];", None),
    ],
)
def test_misuse_of_the_interface_does_not_compile(dylib, tmp_path, line, message):
    source = tmp_path / "use.m"
    source.write_text(
        f"#import <Metal/Metal.h>\nvoid use(id<MTLDevice> gpu);\nvoid use(id<MTLDevice> gpu)\n"
        f"{{\n    {line}\n}}\n"
    )
    done = link.compile_object(source, tmp_path / "use.o")
    if message is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert message in done.stderr


def test_a_symbol_that_no_library_has_does_not_link(dylib, tmp_path):
    source = tmp_path / "use.c"
    source.write_text("int missing(void);\nint use(void);\nint use(void) { return missing(); }\n")
    assert link.compile_object(source, tmp_path / "use.o").returncode == 0
    done = link.link_dylib([tmp_path / "use.o"], tmp_path)
    assert done.returncode != 0
    assert "missing" in done.stderr
