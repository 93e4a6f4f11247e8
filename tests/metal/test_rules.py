"""Rules that keep the kernels within the Metal language, as no compiler of Apple's is at hand."""

from __future__ import annotations

import re
import subprocess

import pytest

from mtlqwen import metal_geometry as geometry
from mtlqwen.errors import ModelError
from mtlqwen.metal_source import library_source

from .emulator.build import COMPILER, HERE, KERNELS
from .emulator.translate import preprocess, translate

FILES = sorted(KERNELS.glob("*.metal"))
TEXTS = sorted([*FILES, *KERNELS.glob("*.h")])

# Position attributes of one kernel are all scalars or all vectors of one length.
POSITIONS = r"(?:thread|threadgroup)_position_in_\w+|threads_per_\w+|threadgroups_per_grid"


def syntax_check(text: str, tmp_path, *flags: str) -> str:
    """What the compiler says of translated text, its headers aside; "" if nothing."""
    source = tmp_path / "library.cpp"
    source.write_text(translate(text, "metal_cpu.h").text)
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-isystem", str(HERE), *flags, str(source)]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_pointer_has_its_address_space(emulator, path, tmp_path):
    text = preprocess(path, COMPILER, ("UNROLL=",))
    assert syntax_check(text, tmp_path, "-DMETAL_LINT") == ""


def test_a_helper_that_forgot_an_address_space_is_an_error(emulator, tmp_path):
    text = preprocess(KERNELS / "rmsnorm.metal", COMPILER, ("UNROLL=",))
    forgot = text.replace("device const float4 *weight =", "const float4 *weight =")
    assert forgot != text
    assert "cannot initialize" in syntax_check(forgot, tmp_path, "-DMETAL_LINT")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_are_cpp14(emulator, path, tmp_path):
    text = preprocess(path, COMPILER, ("UNROLL=",))
    assert syntax_check(text, tmp_path, "-Wpre-c++17-compat") == ""


def test_cpp17_in_a_kernel_is_an_error(emulator, tmp_path):
    text = "inline int f(int x) { if constexpr (sizeof(x) == 4) return x; return 0; }\n"
    assert "constexpr" in syntax_check(text, tmp_path, "-Wpre-c++17-compat")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_text_keeps_the_rules_of_the_house(path):
    text = path.read_text()
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    assert len(text.splitlines()) <= 400
    for include in re.findall(r"#include\s+(\S+)", code):
        assert include.startswith(('"', "<metal_")), include
    for word in ("double", "bfloat", "INFINITY", "NAN", "long", "goto", "assert"):
        assert not re.search(rf"\b{word}\b", code), word
    for function in re.findall(
        r"(?m)^(?!kernel|template|typedef|constant|struct|#)(\w[^;{}=]*)\(", code
    ):
        assert function.startswith(("inline ", "INSTANTIATE", "INSTANCE", "FOR_EACH")), function


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_positions_of_a_kernel_have_one_length(path):
    for parameters in re.findall(r"kernel\s+void\s+\w+\(([^{]*)\)", library_source(path)):
        kinds = re.findall(rf"(uint\d?)\s+\w+\s*\[\[(?:{POSITIONS})\]\]", parameters)
        assert len(set(kinds)) == 1, kinds


def test_geometry_names_every_kernel_and_no_other(emulator):
    gpus = [geometry.Gpu(), geometry.Gpu(geometry.APPLE9, 1)]
    launches = [
        *(
            geometry.linear(g, t, 512, 512, n)
            for g in gpus
            for t in geometry.TYPES
            for n in range(1, 70)
        ),
        *(geometry.embed(t, 256, 1) for t in geometry.TYPES),
        *(geometry.rmsnorm(256, 1), geometry.gather(256, 1), geometry.swiglu(256, 1)),
        *(
            geometry.rotary(4, 1, 1),
            geometry.conv(512, 128, 4, 1, 1),
            geometry.gated_norm(4, 128, 1),
        ),
        *(
            launch
            for dim in geometry.HEAD_DIMS
            for heads in (1, 2, 4, 6)
            for launch in geometry.attention(gpus[0], heads, 1, dim, 9, 1)
        ),
        *geometry.delta(4, 128, 128, 4, geometry.TAPE, 33, 1),
        *geometry.argmax(5000, 1),
        *(geometry.tap(256, 256, 1), geometry.scatter_ids(1), geometry.block_conv(256, 16, 1)),
        *(launch for t in geometry.BOOK_TYPES for launch in geometry.select_path(t, 5000, 1)),
    ]
    named = {(launch.library, launch.kernel) for launch in launches}
    existing = {
        (path.stem, kernel)
        for path in FILES
        for kernel in translate(preprocess(path, COMPILER), "metal_cpu.h").kernels
    }
    assert named == existing


@pytest.mark.parametrize(
    "refused",
    [
        lambda: geometry.linear(geometry.Gpu(), "q3_k", 256, 256, 1),
        lambda: geometry.linear(geometry.Gpu(), "q4_k", 128, 256, 1),
        lambda: geometry.linear(geometry.Gpu(), "q8_0", 96, 256, 1),
        lambda: geometry.embed("q8_0", 48, 1),
        lambda: geometry.attention(geometry.Gpu(), 4, 1, 64, 1, 1),
        lambda: geometry.attention(geometry.Gpu(), 5, 2, 256, 1, 1),
        lambda: geometry.conv(512, 256, 4, 1, 1),
        lambda: geometry.conv(512, 128, 6, 1, 1),
        lambda: geometry.delta(4, 64, 128, 4, geometry.TAPE, 1, 1),
        lambda: geometry.delta(4, 128, 128, 6, geometry.TAPE, 1, 1),
        lambda: geometry.delta(4, 128, 128, 4, 1, 1, 1),
        lambda: geometry.rmsnorm(254, 1),
        lambda: geometry.block_conv(254, 4, 1),
        lambda: geometry.select_path("q8_0", 5000, 1),
        lambda: geometry.select_path("f32", 1 << 20, 1),
    ],
)
def test_shapes_without_a_kernel_are_refused_with_the_numbers(refused):
    with pytest.raises(ModelError, match=r"\d|q3_k"):
        refused()
