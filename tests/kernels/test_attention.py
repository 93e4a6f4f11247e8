"""rotary (norm, rotary positions, append to the cache) and attention over the f16 cache."""

import numpy as np
import pytest
from launch import Batch, run

EPS = 1e-6
BLOCK = 128
NUM_SLOTS = 4
MAX_POSITIONS = 1536
WORKSPACE_BYTES = 1 << 20


class Layer:
    """Shapes of one attention layer, and its cache: all NaN until a position is filled."""

    def __init__(self, heads, kv_heads, dim=256, rotary_dim=64, positions=2 * BLOCK):
        self.heads, self.kv_heads, self.dim, self.rotary_dim = heads, kv_heads, dim, rotary_dim
        self.max_context = -(-positions // BLOCK) * BLOCK
        tiles = NUM_SLOTS * self.max_context // BLOCK
        self.k_cache = np.full((tiles, kv_heads, dim, BLOCK), np.nan, np.float16)
        self.v_cache = np.full((tiles, kv_heads, BLOCK, dim), np.nan, np.float16)

    def keys(self, slot):
        """[positions, kv_heads, dim] of one slot, a copy."""
        tiles = self.k_cache.reshape(NUM_SLOTS, -1, self.kv_heads, self.dim, BLOCK)[slot]
        return np.moveaxis(tiles, -1, 1).reshape(self.max_context, self.kv_heads, self.dim)

    def values(self, slot):
        tiles = self.v_cache.reshape(NUM_SLOTS, -1, self.kv_heads, BLOCK, self.dim)[slot]
        return np.moveaxis(tiles, 1, 2).reshape(self.max_context, self.kv_heads, self.dim)

    def fill(self, rng, slot, count):
        """Random keys and values at the first `count` positions of a slot."""
        for position in range(count):
            tile, place = divmod(slot * self.max_context + position, BLOCK)
            self.k_cache[tile, :, :, place] = rng.standard_normal((self.kv_heads, self.dim))
            self.v_cache[tile, :, place] = rng.standard_normal((self.kv_heads, self.dim))

    def rotary(self, batch, qg, k, v, q_norm, k_norm, gated=True):
        """q; appends to the cache. Without queries (qg None) only that."""
        rope = rope_table(self.rotary_dim)
        heads = 0 if qg is None else self.heads
        q = np.full((batch.num_rows, self.heads, self.dim), 7, np.float32)
        qg = q if qg is None else qg
        shape = (heads, self.kv_heads, self.dim, self.rotary_dim, self.max_context, BLOCK, EPS)
        args = (*shape, gated)
        rows = [batch.row_sequence, batch.positions, np.array(batch.slots, np.int32)]
        arrays = [
            batch.header,
            *rows,
            qg,
            k,
            v,
            q_norm,
            k_norm,
            rope,
            self.k_cache,
            self.v_cache,
            q,
        ]
        *_, self.k_cache, self.v_cache, q = run("rotary", args, arrays)
        return q

    def attention(
        self, batch, q, qg, workspace_bytes=WORKSPACE_BYTES, gated=True, causal=True, window=0
    ):
        """o [rows, heads, dim]."""
        o = np.empty_like(q)
        workspace = np.zeros(WORKSPACE_BYTES // 4, np.float32)
        args = (
            self.heads,
            self.kv_heads,
            self.dim,
            self.max_context,
            BLOCK,
            self.dim**-0.5,
            workspace_bytes,
            gated,
            causal,
            window,
            0,
        )
        starts, slots, kv_valid, _ = batch.per_sequence()
        arrays = [batch.header, starts, slots, kv_valid, q, self.k_cache, self.v_cache, qg, o]
        # What the workspace holds afterwards depends on the split.
        *_, o, _ = run("attention", args, [*arrays, workspace], ignore=[len(arrays)])
        return o

    def reference(self, batch, q, qg, causal=True, window=0):
        """Without gates where qg is None."""
        group = self.heads // self.kv_heads
        o = np.zeros(q.shape)
        for s, (kv, slot) in enumerate(zip(batch.kv_valid, batch.slots, strict=True)):
            keys, values = (
                np.repeat(x.astype(np.float64), group, 1)
                for x in (self.keys(slot), self.values(slot))
            )
            for i, row in enumerate(range(batch.starts[s], batch.starts[s + 1])):
                distance = kv + i - np.arange(kv + batch.lengths[s])
                seen = (distance >= 0) | (not causal)
                seen &= (np.abs(distance) < window) | (not window)
                seen = np.flatnonzero(seen)
                scores = np.einsum("hd,phd->hp", q[row], keys[seen]) / np.sqrt(self.dim)
                p = np.exp(scores - scores.max(-1, keepdims=True))
                p /= p.sum(-1, keepdims=True)
                o[row] = np.einsum("hp,phd->hd", p, values[seen])
                if qg is not None:
                    o[row] /= 1 + np.exp(-qg[row, :, 1].astype(np.float64))
        return o


def last_position(lengths, kv_valid):
    return max(length + kv for length, kv in zip(lengths, kv_valid, strict=True))


def rope_table(rotary_dim):
    half = rotary_dim // 2
    angles = np.arange(MAX_POSITIONS)[:, None] * 1e7 ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def rotary_reference(x, w, positions, rotary_dim):
    x = x.astype(np.float64)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * w
    half = rotary_dim // 2
    angles = positions[:, None, None] * 1e7 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:rotary_dim]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.concatenate([*turned, x[..., rotary_dim:]], axis=-1)


BATCHES = [  # lengths, kv_valid, slots
    ([1], [0], [0]),
    ([1], [127], [1]),
    ([2], [127], [3]),
    ([1, 1, 1], [128, 0, 700], [2, 0, 1]),
    ([129], [0], [2]),
    ([5, 40, 1, 17], [126, 90, 255, 0], [3, 1, 0, 2]),
]
HEADS = [(2, 1, 64, 24), (4, 2, 256, 64), (8, 2, 256, 64), (6, 1, 256, 64), (3, 3, 32, 32)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotary_dim"), HEADS)
@pytest.mark.parametrize(("lengths", "kv_valid", "slots"), BATCHES[2:])
def test_rotary_norms_turns_and_appends(
    rng, heads, kv_heads, dim, rotary_dim, lengths, kv_valid, slots
):
    layer, batch = (
        Layer(heads, kv_heads, dim, rotary_dim, last_position(lengths, kv_valid)),
        Batch(lengths, kv_valid, slots, [0] * len(slots)),
    )
    qg = floats(rng, batch.num_rows, heads, 2, dim)
    k, v = floats(rng, batch.num_rows, kv_heads, dim), floats(rng, batch.num_rows, kv_heads, dim)
    q_norm, k_norm = floats(rng, dim), floats(rng, dim)
    q = layer.rotary(batch, qg, k, v, q_norm, k_norm)
    np.testing.assert_allclose(
        q, rotary_reference(qg[:, :, 0], q_norm, batch.positions, rotary_dim), atol=4e-6
    )
    expected_k = rotary_reference(k, k_norm, batch.positions, rotary_dim)
    for s, slot in enumerate(slots):
        rows, cached = batch.rows_of(s), slice(kv_valid[s], kv_valid[s] + lengths[s])
        np.testing.assert_allclose(
            layer.keys(slot)[cached], expected_k[rows], rtol=2**-11 + 1e-5, atol=4e-6
        )
        np.testing.assert_array_equal(layer.values(slot)[cached], v[rows].astype(np.float16))
    appended = batch.num_rows * kv_heads * dim
    assert np.isfinite(layer.k_cache).sum() == np.isfinite(layer.v_cache).sum() == appended


def attention_case(rng, heads, kv_heads, dim, lengths, kv_valid, slots):
    layer = Layer(heads, kv_heads, dim, positions=last_position(lengths, kv_valid))
    batch = Batch(lengths, kv_valid, slots, [0] * len(slots))
    for length, kv, slot in zip(lengths, kv_valid, slots, strict=True):
        layer.fill(rng, slot, kv + length)  # the rest stays NaN: it must not matter
    q, qg = 2 * floats(rng, batch.num_rows, heads, dim), floats(rng, batch.num_rows, heads, 2, dim)
    return layer, batch, q, qg


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotary_dim"), HEADS)
@pytest.mark.parametrize(("lengths", "kv_valid", "slots"), BATCHES)
def test_attention_equals_numpy(rng, heads, kv_heads, dim, rotary_dim, lengths, kv_valid, slots):
    layer, batch, q, qg = attention_case(rng, heads, kv_heads, dim, lengths, kv_valid, slots)
    o = layer.attention(batch, q, qg)
    np.testing.assert_allclose(o, layer.reference(batch, q, qg), atol=3e-6)


@pytest.mark.parametrize("kv", [126, 127, 128, 129, 1300])
def test_splitting_over_blocks_does_not_change_a_bit(rng, kv):
    layer, batch, q, qg = attention_case(rng, 8, 2, 256, [2], [kv], [1])
    split = layer.attention(batch, q, qg)
    np.testing.assert_array_equal(layer.attention(batch, q, qg, workspace_bytes=0), split)
    np.testing.assert_allclose(split, layer.reference(batch, q, qg), atol=3e-6)


def test_rows_do_not_depend_on_their_company(rng):
    lengths, kv_valid, slots = [5, 150, 1], [126, 90, 200], [3, 1, 0]
    layer, batch, q, qg = attention_case(rng, 8, 2, 256, lengths, kv_valid, slots)
    together = layer.attention(batch, q, qg)
    for s in range(3):
        for i in range(0, lengths[s], 13):
            row = batch.starts[s] + i
            alone = Batch([1], [kv_valid[s] + i], [slots[s]], [0])
            o = layer.attention(alone, q[row : row + 1], qg[row : row + 1])
            np.testing.assert_array_equal(o[0], together[row])


def test_later_positions_of_the_block_do_not_matter(rng):
    layer, batch, q, qg = attention_case(rng, 4, 2, 256, [140], [30], [2])
    together = layer.attention(batch, q, qg)
    tile, place = divmod(2 * layer.max_context + 100, BLOCK)
    layer.k_cache[tile, :, :, place:] = np.inf
    layer.v_cache[tile, :, place:] = np.inf
    early = Batch([70], [30], [2], [0])
    np.testing.assert_array_equal(layer.attention(early, q[:70], qg[:70]), together[:70])


@pytest.mark.parametrize("pieces", [[1] * 9, [5, 4], [8, 1]])
def test_a_prompt_in_pieces_gives_the_same_cache_and_output(rng, pieces):
    start, length = 124, 9  # across a border of blocks
    first, second = Layer(4, 2), Layer(4, 2)
    first.fill(rng, 1, start)
    second.k_cache, second.v_cache = first.k_cache.copy(), first.v_cache.copy()
    qg, q_norm, k_norm = floats(rng, length, 4, 2, 256), floats(rng, 256), floats(rng, 256)
    k, v = floats(rng, length, 2, 256), floats(rng, length, 2, 256)

    def feed(layer, begin, end):
        batch, rows = Batch([end - begin], [start + begin], [1], [0]), slice(begin, end)
        q = layer.rotary(batch, qg[rows], k[rows], v[rows], q_norm, k_norm)
        return layer.attention(batch, q, qg[rows])

    whole = feed(first, 0, length)
    ends = np.cumsum(pieces)
    outputs = [feed(second, end - n, end) for n, end in zip(pieces, ends, strict=True)]
    np.testing.assert_array_equal(np.concatenate(outputs), whole)
    np.testing.assert_array_equal(second.keys(1)[: start + length], first.keys(1)[: start + length])
    np.testing.assert_array_equal(
        second.values(1)[: start + length], first.values(1)[: start + length]
    )


def test_rotary_without_gates_and_without_queries(rng):
    """A drafter's queries have no gate lanes; the rows of its context have no queries at all."""
    batch = Batch([5, 1], [126, 40], [3, 0], [0, 0])
    k, v = floats(rng, 6, 2, 128), floats(rng, 6, 2, 128)
    q, q_norm, k_norm = floats(rng, 6, 8, 128), floats(rng, 128), floats(rng, 128)
    gated, plain, injected = (Layer(8, 2, 128, 128) for _ in range(3))
    expected = gated.rotary(batch, np.stack([q, q], axis=2), k, v, q_norm, k_norm)
    turned = plain.rotary(batch, q, k, v, q_norm, k_norm, gated=False)
    untouched = injected.rotary(batch, None, k, v, q_norm, k_norm, gated=False)
    np.testing.assert_array_equal(turned, expected)
    assert (untouched == 7).all()
    for layer in (plain, injected):
        np.testing.assert_array_equal(layer.k_cache, gated.k_cache)
        np.testing.assert_array_equal(layer.v_cache, gated.v_cache)


MASKS = [  # causal, window
    (False, 0),
    (True, 1),
    (True, 50),
    (True, 128),
    (True, 300),
    (False, 1),
    (False, 60),
    (False, 200),
    (True, 4000),
]


@pytest.mark.parametrize(("causal", "window"), MASKS)
@pytest.mark.parametrize(
    ("lengths", "kv_valid", "slots"),
    [([1], [0], [0]), ([16], [120], [1]), ([9, 1, 130, 4], [126, 700, 60, 383], [2, 0, 1, 3])],
)
def test_windows_and_blocks_that_see_all_of_themselves(
    rng, causal, window, lengths, kv_valid, slots
):
    layer, batch, q, _ = attention_case(rng, 8, 2, 64, lengths, kv_valid, slots)
    o = layer.attention(batch, q, q, gated=False, causal=causal, window=window)
    expected = layer.reference(batch, q, None, causal, window)
    np.testing.assert_allclose(o, expected, atol=3e-6)
    whole = layer.attention(
        batch, q, q, gated=False, causal=causal, window=window, workspace_bytes=0
    )
    np.testing.assert_array_equal(whole, o)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_outside_the_window_are_not_touched(rng, causal):
    """Positions 0 to 511 are NaN; the rows at 700 and up see 99 positions back."""
    layer, batch, q, _ = attention_case(rng, 4, 2, 64, [40], [700], [1])
    expected = layer.reference(batch, q, None, causal, 100)
    tile = layer.max_context // BLOCK
    layer.k_cache[tile : tile + 600 // BLOCK] = np.nan
    layer.v_cache[tile : tile + 600 // BLOCK] = np.nan
    o = layer.attention(batch, q, q, gated=False, causal=causal, window=100)
    np.testing.assert_allclose(o, expected, atol=3e-6)


def test_rows_in_a_window_do_not_depend_on_their_company(rng):
    layer, batch, q, _ = attention_case(rng, 8, 2, 64, [150, 3], [90, 200], [1, 0])
    together = layer.attention(batch, q, q, gated=False, window=70)
    for i in range(0, 150, 13):
        alone = Batch([1], [90 + i], [1], [0])
        o = layer.attention(alone, q[i : i + 1], q[i : i + 1], gated=False, window=70)
        np.testing.assert_array_equal(o[0], together[i])
