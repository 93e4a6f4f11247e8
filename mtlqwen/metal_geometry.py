"""What a Metal device launches for each operation of the network: kernel, constants, threads, grid.

Pure functions of shapes and of the GPU. An operation takes one or more launches, in order, that all
bind the same buffers (kernels/args.h, then a workspace where one is named here) and the same
arguments. Grids are in threadgroups and cover `max_rows`; with fewer rows in the step the
superfluous groups return at once, or the grid's `row_axis` is written by the host as ceil(rows /
rows_per_group) for an indirect dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ModelError

ARGS_BUFFER = 30  # index of the argument struct (kernels/metal/common.h)

# MTLGPUFamily. M1 is Apple7, M2 Apple8, M3 and M4 Apple9, M5 Apple10.
APPLE7, APPLE8, APPLE9, APPLE10 = 1007, 1008, 1009, 1010
CORES_OF_NAME = {"Ultra": 60, "Max": 32, "Pro": 16}  # the least of each, M1 .. M5

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "iq4_xs")
K_TYPES = frozenset({"q4_k", "q5_k", "q6_k", "iq4_xs"})  # in blocks of 256
LINEAR_VALUES = 256  # that the lanes of a SIMD group read of a row of W in one step
HEAD_DIMS = (128, 256)  # of attention: drafters have 128
KEY_DIM = 128  # of the delta rule
TAPE = 0  # layout of what it records (kernels/args.h)
BLOCK_TOKENS = 128
MAX_CONV_HEAD_DIM = 128
PAGE_BYTES_INDEX = 2  # of the function constant of kernels that touch the K/V cache (cache.h)

# A vector kernel reads and decodes a weight once for up to four rows; from five on a matrix tile is
# faster (its cost does not depend on the number of rows up to its height).
MAX_VECTOR_ROWS = 4
# Four rows of W a SIMD group instead of two: x is read half as often, and more bytes are in flight.
# Not for types that keep 32 weights of a row in a lane: they have enough, and lose occupancy.
WIDE_TYPES = frozenset({"f32", "f16", "bf16", "q8_0", "q4_0", "iq4_xs"})
FULL_SIMDGROUPS_PER_CORE = 24

MAX_DECODE_ROWS = 4  # of a sequence: above, its attention is tiled instead of split over the cache
MAX_RECURRENT_ROWS = 16  # of a sequence: above, its delta rule runs in chunks
PREFILL_TILE_ROWS = 16
SPLIT_ROWS = 16  # of a plan: up to here its tiles are split over the cache, too
ARGMAX_VALUES_PER_BLOCK = 4096
BOOK_TYPES = ("f32", "f16", "bf16")  # of select_path
SELECT_CHUNK = 8192  # logits of a threadgroup; its workspace is sized by it (kernels/args.h)
SELECT_MAX_CHUNKS = 32  # whose candidates one SIMD group merges
DECODE_HEADS = (6, 4, 2, 1)  # instances of attention_decode


@dataclass(frozen=True)
class Gpu:
    """What decides between variants."""

    family: int = APPLE7
    num_cores: int = 8
    max_splits: int = 128  # bounds the workspace of attention

    @classmethod
    def of(cls, name: str, family: str) -> Gpu:
        """From the device's name and its family, "apple7" .. Metal does not tell the cores."""
        cores = next((n for word, n in CORES_OF_NAME.items() if word in name), 8)
        return cls(int(family.removeprefix("apple")) + 1000, cores)

    @property
    def num_splits(self) -> int:
        """Parts that a cache is split into for decoding: 32 (M1 .. M5), 64 (Pro), 128."""
        wanted = 32 if self.num_cores <= 10 else 64 if self.num_cores <= 20 else 128
        return min(wanted, self.max_splits)

    def tile_splits(self, max_rows: int) -> int:
        """Parts that a cache is split into for each tile of rows, of which a draft has few."""
        return max(self.num_splits // 4, 1) if max_rows <= SPLIT_ROWS else 1


@dataclass(frozen=True)
class Launch:
    """One dispatch. `constants`: (index, 32-bit value) of function constants."""

    library: str  # kernels/metal/<library>.metal
    kernel: str
    grid: tuple[int, int, int]
    threads: int  # of a threadgroup, along x
    constants: tuple[tuple[int, int], ...] = ()
    row_axis: int | None = None  # of the grid; None: it does not depend on the rows of a step
    rows_per_group: int = 1
    barrier: bool = False  # after the operation's previous launch


def embed(weight_type: str, dim: int, max_rows: int) -> Launch:
    _check_type(weight_type, dim)
    grid = (_ceil(dim // 16, 64), max_rows, 1)
    return Launch("embed", f"embed_{weight_type}", grid, 64, row_axis=1)


def linear(gpu: Gpu, weight_type: str, in_dim: int, out_dim: int, max_rows: int) -> Launch:
    """y[rows, out] (+)= x[rows, in] W^T. `in` is a multiple of 256 in all models of the family."""
    _check_type(weight_type, in_dim)
    _check_multiple("a matrix", in_dim, LINEAR_VALUES)
    if max_rows <= MAX_VECTOR_ROWS:
        return _linear_vector(gpu, weight_type, out_dim, max_rows)
    largest = (
        64 if gpu.family >= APPLE9 else 32
    )  # more than 8 accumulators halve the rate of M1 and M2
    tokens = next(t for t in (8, 16, 32, 64) if t >= min(max_rows, largest))
    grid = (_ceil(max_rows, tokens), _ceil(out_dim, 64), 1)
    name = f"linear_{weight_type}_mm{tokens}"
    return Launch("linear_mm", name, grid, 128, row_axis=0, rows_per_group=tokens)


def _linear_vector(gpu: Gpu, weight_type: str, out_dim: int, max_rows: int) -> Launch:
    rows, suffix = 2, f"mv{max_rows}"
    if (
        max_rows == 1
        and weight_type in WIDE_TYPES
        and out_dim >= 4 * FULL_SIMDGROUPS_PER_CORE * gpu.num_cores
    ):
        rows, suffix = 4, "mv1_wide"
    grid = (_ceil(out_dim, 2 * rows), 1, 1)
    name = f"linear_{weight_type}_{suffix}"
    return Launch("linear_mv", name, grid, 64, row_axis=1, rows_per_group=max_rows)


def rmsnorm(dim: int, max_rows: int) -> Launch:
    _check_multiple("rmsnorm", dim, 4)
    return Launch("rmsnorm", "rmsnorm", (max_rows, 1, 1), 256, row_axis=0)


def gather(dim: int, max_rows: int) -> Launch:
    _check_multiple("gather", dim, 4)
    return Launch("gather", "gather", (_ceil(dim, 4 * 128), max_rows, 1), 128, row_axis=1)


def swiglu(dim: int, max_rows: int) -> Launch:
    _check_multiple("swiglu", dim, 4)
    return Launch("swiglu", "swiglu", (_ceil(dim, 4 * 256), max_rows, 1), 256, row_axis=1)


def rotary(num_heads: int, num_kv_heads: int, max_rows: int, page_bytes: int = 0) -> Launch:
    """page_bytes: of a K/V cache that is a page table; 0: it is address space."""
    grid = (_ceil(num_heads + 2 * num_kv_heads, 4), max_rows, 1)
    return Launch("rotary", "rotary", grid, 128, ((PAGE_BYTES_INDEX, page_bytes),), row_axis=1)


def attention(
    gpu: Gpu,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_rows: int,
    max_sequences: int,
    page_bytes: int = 0,
) -> list[Launch]:
    """Decode and merge for the sequences of few rows, tiles for the others, if any can have that
    many. page_bytes: as for rotary.
    """
    if head_dim not in HEAD_DIMS or num_heads % num_kv_heads:
        raise ModelError(
            f"attention with {num_heads} heads of {head_dim} and {num_kv_heads} KV heads: the "
            f"Metal kernels have heads of {' and '.join(map(str, HEAD_DIMS))}, in whole groups"
        )
    group = num_heads // num_kv_heads
    heads = next(h for h in DECODE_HEADS if group % h == 0)
    splits = gpu.num_splits
    slots = max_sequences * MAX_DECODE_ROWS
    constants = ((0, MAX_DECODE_ROWS), (PAGE_BYTES_INDEX, page_bytes))
    split = (*constants, (1, splits))
    library = "attention_decode"
    decode, merge = f"attention_decode_{head_dim}_{heads}", f"attention_merge_{head_dim}"
    decoding = Launch(library, decode, (splits, num_heads // heads, slots), 64, split)
    merging = Launch(library, merge, (num_heads, 1, slots), 64, split, barrier=True)
    if max_rows <= MAX_DECODE_ROWS:
        return [decoding, merging]
    tile_splits = gpu.tile_splits(max_rows)
    num_tiles = _ceil(max_rows * group, PREFILL_TILE_ROWS) + max_sequences
    grid, split = (num_tiles, num_kv_heads, tile_splits), (*constants, (3, tile_splits))
    library = "attention_prefill"
    tiles = Launch(library, f"attention_prefill_{head_dim}", grid, 128, split)
    if tile_splits == 1:
        return [decoding, merging, tiles]
    merge = f"attention_merge_tiles_{head_dim}"
    return [decoding, tiles, merging, Launch(library, merge, (num_heads, max_rows, 1), 64, split)]


def attention_workspace_bytes(
    gpu: Gpu, num_heads: int, head_dim: int, max_rows: int, max_sequences: int
) -> int:
    """Of the operand `workspace`: for each split a vector of values, the largest score and the
    sum; those of tiles at the end.
    """
    num_parts = max_sequences * MAX_DECODE_ROWS * gpu.num_splits
    if max_rows > MAX_DECODE_ROWS and gpu.tile_splits(max_rows) > 1:
        num_parts += SPLIT_ROWS * gpu.tile_splits(max_rows)
    return num_parts * num_heads * 4 * (head_dim + 2)


def conv(
    num_channels: int, head_dim: int, tape_row_floats: int, max_rows: int, max_sequences: int
) -> Launch:
    """Rows, and the new tail of each sequence, of which some may have no rows."""
    if head_dim > MAX_CONV_HEAD_DIM or head_dim % 4 or num_channels % 4:
        raise ModelError(
            f"convolution over {num_channels} channels in heads of {head_dim}: the Metal kernel "
            f"has heads of at most {MAX_CONV_HEAD_DIM} and multiples of 4"
        )
    _check_multiple("the tape", tape_row_floats, 4)
    grid = (_ceil(num_channels, 4 * head_dim), max_sequences + max_rows, 1)
    return Launch("conv", "conv", grid, 128)


def delta(
    num_value_heads: int,
    key_dim: int,
    value_dim: int,
    tape_row_floats: int,
    layout: int,
    max_rows: int,
    max_sequences: int,
) -> list[Launch]:
    """The recurrence for sequences of few rows and for those that verify a draft; chunks for the
    others, if any can have that many.
    """
    if key_dim != KEY_DIM or value_dim % 32:
        raise ModelError(
            f"delta rule with keys of {key_dim} and values of {value_dim}: the Metal kernels "
            f"have keys of {KEY_DIM} and values of a multiple of 32"
        )
    if layout != TAPE:
        raise ModelError(
            f"a tape of layout {layout} (states): the Metal kernels record layout {TAPE} alone"
        )
    _check_multiple("the tape", tape_row_floats, 4)
    grid = (value_dim // 32, num_value_heads, max_sequences)
    constants = ((0, MAX_RECURRENT_ROWS),)
    launches = [Launch("delta", "delta", grid, 128, constants)]
    if max_rows > MAX_RECURRENT_ROWS:
        launches.append(Launch("delta_chunk", "delta_chunk", grid, 128, constants))
    return launches


def gated_norm(num_heads: int, dim: int, max_rows: int) -> Launch:
    _check_multiple("gated_norm", dim, 4)
    return Launch("gated_norm", "gated_norm", (_ceil(num_heads, 4), max_rows, 1), 128, row_axis=1)


def argmax(num_valid: int, max_rows: int) -> list[Launch]:
    """Bindings: header, logits, ids, workspace."""
    blocks = _ceil(num_valid, ARGMAX_VALUES_PER_BLOCK)
    return [
        Launch("argmax", "argmax_blocks", (blocks, max_rows, 1), 256, row_axis=1),
        Launch("argmax", "argmax", (max_rows, 1, 1), 32, row_axis=0, barrier=True),
    ]


def argmax_workspace_bytes(num_valid: int, max_rows: int) -> int:
    return 8 * max_rows * _ceil(num_valid, ARGMAX_VALUES_PER_BLOCK)


def tap(dim: int, stride: int, max_rows: int) -> Launch:
    _check_multiple("tap", dim, 4)
    _check_multiple("tap", stride, 4)
    return Launch("tap", "tap", (_ceil(dim, 4 * 128), max_rows, 1), 128, row_axis=1)


def scatter_ids(max_rows: int) -> Launch:
    grid = (_ceil(max_rows, 32), 1, 1)
    return Launch("scatter_ids", "scatter_ids", grid, 32, row_axis=0, rows_per_group=32)


def block_conv(dim: int, group: int, max_rows: int) -> Launch:
    _check_multiple("block_conv", dim, group)
    _check_multiple("a group of block_conv", group, 4)
    grid = (_ceil(dim, 4 * 128), max_rows, 1)
    return Launch("block_conv", "block_conv", grid, 128, row_axis=1)


def select_path(book_type: str, num_valid: int, max_rows: int) -> list[Launch]:
    """`max_rows`: with logits. The codebooks' type is a suffix."""
    if book_type not in BOOK_TYPES or num_valid > SELECT_MAX_CHUNKS * SELECT_CHUNK:
        raise ModelError(
            f"a selector with {book_type} codebooks of {num_valid} tokens: the Metal kernels have "
            f"{', '.join(BOOK_TYPES)} and at most {SELECT_MAX_CHUNKS * SELECT_CHUNK} tokens"
        )
    chunks, name = _ceil(num_valid, SELECT_CHUNK), f"select_path_{book_type}"
    return [
        Launch("select_path", "select_path_top", (chunks, max_rows, 1), 256, row_axis=1),
        Launch("select_path", name, (max_rows, 1, 1), 256, row_axis=0, barrier=True),
    ]


def _check_type(weight_type: str, row_values: int) -> None:
    if weight_type not in TYPES:
        raise ModelError(
            f"tensor type {weight_type}: the Metal kernels have {', '.join(TYPES)}; "
            "convert the file to one of them"
        )
    _check_multiple(f"a {weight_type} matrix", row_values, 256 if weight_type in K_TYPES else 32)


def _check_multiple(what: str, dim: int, multiple: int) -> None:
    if dim % multiple:
        raise ModelError(f"{what} has rows of {dim} values, not a multiple of {multiple}")


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
