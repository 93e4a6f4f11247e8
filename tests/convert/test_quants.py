"""Block formats against scalar decoders, written from their description, one value at a time."""

import struct

import numpy as np
import pytest

from mtlqwen.gguf import TensorType
from mtlqwen.quants import dequantize, quantize

IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
E2M1_TWICE = [0, 1, 2, 3, 4, 6, 8, 12]
F32 = np.float32


def half(block, at):
    return F32(struct.unpack_from("<e", block, at)[0])


def signed(byte):
    return byte - 256 if byte > 127 else byte


def nibble(block, at, i):
    """Value i of 32 in 16 bytes: the low halves first."""
    return block[at + i % 16] >> (4 * (i // 16)) & 15


def q4_0(b, i):
    return half(b, 0) * F32(nibble(b, 2, i) - 8)


def q4_1(b, i):
    return half(b, 0) * F32(nibble(b, 4, i)) + half(b, 2)


def q5_0(b, i):
    fifth = int.from_bytes(b[2:6], "little") >> i & 1
    return half(b, 0) * F32(nibble(b, 6, i) + 16 * fifth - 16)


def q5_1(b, i):
    fifth = int.from_bytes(b[4:8], "little") >> i & 1
    return half(b, 0) * F32(nibble(b, 8, i) + 16 * fifth) + half(b, 2)


def q8_0(b, i):
    return half(b, 0) * F32(signed(b[2 + i]))


def iq4_nl(b, i):
    return half(b, 0) * F32(IQ4[nibble(b, 2, i)])


def mxfp4(b, i):
    code = nibble(b, 1, i)
    value = E2M1_TWICE[code % 8] * (-1 if code >= 8 else 1)
    return F32(np.ldexp(float(value), b[0] - 128))


def two_bits(b, at, i):
    return b[at + 32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3


def q2_k(b, i):
    scale = b[i // 16]
    positive = half(b, 80) * F32(scale & 15) * F32(two_bits(b, 16, i))
    return positive - half(b, 82) * F32(scale >> 4)


def q3_k(b, i):
    j = i // 16
    low = b[96 + j % 8] >> (4 * (j // 8)) & 15
    high = b[104 + j % 4] >> (2 * (j // 4)) & 3
    code = two_bits(b, 32, i) - (0 if b[i % 32] >> (i // 32) & 1 else 4)
    return half(b, 108) * F32(low + 16 * high - 32) * F32(code)


def scale_and_min(b, j):
    s = b[4:16]
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def affine(b, i, code):
    scale, low = scale_and_min(b, i // 32)
    return half(b, 0) * F32(scale) * F32(code) - half(b, 2) * F32(low)


def paired(b, at, i):
    j = i // 32
    return b[at + 32 * (j // 2) + i % 32] >> (4 * (j % 2)) & 15


def q4_k(b, i):
    return affine(b, i, paired(b, 16, i))


def q5_k(b, i):
    return affine(b, i, paired(b, 48, i) + 16 * (b[16 + i % 32] >> (i // 32) & 1))


def q6_k(b, i):
    a, g, lane = i // 128, i % 128 // 32, i % 32
    low = b[64 * a + 32 * (g % 2) + lane] >> (4 * (g // 2)) & 15
    high = b[128 + 32 * a + lane] >> (2 * g) & 3
    return half(b, 208) * F32(signed(b[192 + i // 16])) * F32((low | high << 4) - 32)


def iq4_xs(b, i):
    j = i // 32
    low = b[4 + j // 2] >> (4 * (j % 2)) & 15
    high = int.from_bytes(b[2:4], "little") >> (2 * j) & 3
    return half(b, 0) * F32((low | high << 4) - 32) * F32(IQ4[nibble(b, 8 + 16 * j, i % 32)])


SCALAR = {
    "F32": lambda b, i: F32(struct.unpack_from("<f", b, 0)[0]),
    "F16": lambda b, i: half(b, 0),
    "BF16": lambda b, i: F32(struct.unpack("<f", bytes(2) + b)[0]),
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}
WRITABLE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
HALF_AT = {
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q6_K": [208],
    "Q4_1": [0, 2],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
}


def random_rows(name, num_rows=6, blocks_per_row=3):
    """Random bytes; f16 scales are kept finite, since infinities have no useful value."""
    type_ = TensorType[name]
    rng = np.random.default_rng(int(type_))
    blocks = rng.integers(0, 256, (num_rows * blocks_per_row, type_.block_bytes), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] %= 250  # larger exponents overflow f32
    elif name not in ("F32", "BF16"):
        for at in HALF_AT.get(name, [0]):
            blocks[:, at + 1] &= 0b10111111
    return blocks.reshape(num_rows, -1)


def test_every_type_has_a_scalar_decoder_here():
    assert set(SCALAR) == {type_.name for type_ in TensorType}


@pytest.mark.parametrize("name", SCALAR)
def test_dequantised_values_are_those_of_the_format_bit_for_bit(name):
    type_, rows = TensorType[name], random_rows(name)
    blocks = [row.tobytes() for row in rows.reshape(-1, type_.block_bytes)]
    expected = [[SCALAR[name](block, i) for i in range(type_.block_values)] for block in blocks]
    values = dequantize(rows, type_)
    assert values.dtype == np.float32
    assert values.shape == (len(rows), 3 * type_.block_values)
    bits = np.array(expected, np.float32).reshape(values.shape).view(np.uint32)
    np.testing.assert_array_equal(values.view(np.uint32), bits)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("F32", 0),
        ("F16", 3e-4),
        ("BF16", 2e-3),
        ("Q8_0", 6e-3),
        ("Q6_K", 0.019),
        ("Q4_K", 0.074),
        ("Q4_0", 0.087),
    ],
)
def test_quantised_gaussians_come_back_with_the_error_of_the_type(name, bound):
    """Root mean square error over that of the values; a plain rounding to 4 bits gives 0.0885."""
    values = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32) * 0.02
    again = dequantize(quantize(values, TensorType[name]), TensorType[name])
    error = np.sqrt(np.mean((again - values) ** 2)) / 0.02
    assert error <= bound
    assert error >= bound / 2


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("value", [0.0, 0.5, -0.5, 1e-30])
def test_constant_rows_are_kept(name, value):
    values = np.full((2, 256), value, np.float32)
    again = dequantize(quantize(values, TensorType[name]), TensorType[name])
    np.testing.assert_allclose(again, values, rtol=0.02, atol=1e-8)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_rows_do_not_depend_on_their_neighbours(name):
    values = np.random.default_rng(2).standard_normal((300, 512)).astype(np.float32)
    whole = quantize(values, TensorType[name])
    for i in (0, 127, 128, 299):
        np.testing.assert_array_equal(quantize(values[i : i + 1], TensorType[name])[0], whole[i])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e6])
def test_values_without_a_scale_are_refused(name, bad):
    values = np.zeros((1, 256), np.float32)
    values[0, 100] = bad
    with pytest.raises(ValueError, match="up to 65504"):
        quantize(values, TensorType[name])


def test_f16_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match="not 70000"):
        quantize(np.array([[1, 70000]], np.float32), TensorType.F16)


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF, 0xFF800000]], np.uint32)
    raw = quantize(bits.view(np.float32), TensorType.BF16).view(np.uint16)[0].tolist()
    assert raw[:3] == [0x3F80, 0x3F82, 0x3F81]
    assert np.isnan(dequantize(np.array([raw], np.uint16).view(np.uint8), TensorType.BF16)[0, 3])
    assert raw[4] == 0xFF80


def test_q8_0_codes_round_half_away_from_zero():
    values = np.zeros((1, 32), np.float32)
    values[0, :4] = [127, 2.5, -2.5, 0.49999997]
    assert quantize(values, TensorType.Q8_0)[0, 2:6].view(np.int8).tolist() == [127, 3, -3, 0]


def test_a_type_that_is_only_read_is_refused():
    with pytest.raises(ValueError, match="Q5_K cannot be written, only F32"):
        quantize(np.zeros((1, 256), np.float32), TensorType.Q5_K)


def test_rows_that_blocks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="multiples of 256 values, not 128"):
        quantize(np.zeros((1, 128), np.float32), TensorType.Q4_K)
    with pytest.raises(ValueError, match="multiple of 34 bytes"):
        dequantize(np.zeros((1, 35), np.uint8), TensorType.Q8_0)
