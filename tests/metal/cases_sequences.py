"""Cases of the kernels that work on packed sequences: rotary, attention, conv, delta."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from mtlqwen import metal_geometry as geometry

from .case_file import GUARD_ROWS, Case
from .cases_rows import guarded, header, normal, rng_of, sigmoid

BLOCK, DIM, KEY = geometry.BLOCK_TOKENS, 256, geometry.KEY_DIM
EPS = 1e-6


@dataclass
class Batch:
    """Packed sequences: rows of this step and positions cached before it, each in a slot of its
    own; which verify a draft, and how many rows of their tapes are to be replayed.
    """

    counts: list[int]
    kv_valid: list[int]
    slots: list[int]
    max_context: int = 512
    bound: tuple[int, ...] = ()  # indices of sequences
    pending: dict[int, int] = field(default_factory=dict)  # of a sequence

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "header": header(self.rows, len(self.counts)),
            "query_start_loc": np.cumsum([0, *self.counts]).astype(np.int32),
            "sequence_slots": np.array(self.slots, np.int32),
            "batched_kv_valid": np.array(self.kv_valid, np.int32),
            "bank": np.array([s % 2 for s in range(len(self.counts))], np.int32),
            "state": np.array(
                [slot if s in self.bound else -1 for s, slot in enumerate(self.slots)], np.int32
            ),
            "pending": np.array(
                [self.pending.get(s, 0) for s in range(len(self.counts))], np.int32
            ),
            "row_sequence": np.repeat(np.arange(len(self.counts)), self.counts).astype(np.int32),
            "positions": np.concatenate(
                [v + np.arange(n) for v, n in zip(self.kv_valid, self.counts, strict=True)]
            ).astype(np.int32),
        }

    def label(self) -> str:
        words = []
        for s, (valid, count) in enumerate(zip(self.kv_valid, self.counts, strict=True)):
            replayed = f"({self.pending[s]} replayed)" if s in self.pending else ""
            words.append(f"{valid}{replayed}+{count}{' draft' * (s in self.bound)}")
        return " ".join(words)


def rotary_case(
    heads: int,
    kv_heads: int,
    batch: Batch,
    dim: int = DIM,
    rotary_dim: int = 64,
    *,
    gated: bool = True,
) -> Case:
    """heads 0: keys and values are stored, queries are NaN and stay so."""
    gates = "gated" if gated else "plain"
    name = f"rotary {heads}/{kv_heads} {gates} heads of {dim}, turned {rotary_dim}"
    case = Case(f"{name}, {batch.label()}", 4e-4)
    rng, a, rows = rng_of(case.name), batch.arrays(), batch.rows
    qg = normal(rng, rows, max(heads, 1), 1 + gated, dim)
    if not heads:
        qg[:] = np.nan
    k, v = normal(rng, rows, kv_heads, dim), normal(rng, rows, kv_heads, dim)
    q_norm, k_norm = normal(rng, dim), normal(rng, dim)
    angles = np.arange(batch.max_context)[:, None] * 1e7 ** (
        -2 * np.arange(rotary_dim // 2) / rotary_dim
    )
    rope = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def turn(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
        x = x.astype(float)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * norm
        half = rotary_dim // 2
        cos, sin = np.split(rope[a["positions"]][:, None].astype(float), 2, axis=-1)
        first, second = x[..., :half], x[..., half:rotary_dim]
        return np.concatenate(
            [first * cos - second * sin, second * cos + first * sin, x[..., rotary_dim:]], axis=-1
        )

    cells = a["sequence_slots"][a["row_sequence"]] * batch.max_context + a["positions"]
    num_tiles = (max(batch.slots) + 1) * batch.max_context // BLOCK
    k_cache = np.full((num_tiles, kv_heads, dim, BLOCK), np.nan)
    v_cache = np.full((num_tiles, kv_heads, BLOCK, dim), np.nan)
    turned = turn(k, k_norm)
    for row, cell in enumerate(cells):
        k_cache[cell // BLOCK, :, :, cell % BLOCK] = turned[row]
        v_cache[cell // BLOCK, :, cell % BLOCK] = v[row]
    names = ("header", "row_sequence", "positions", "sequence_slots")
    bindings = [case.input(a[name]) for name in names]
    bindings += [case.input(x) for x in (qg, k, v, q_norm, k_norm, rope)]
    bindings += [case.output(k_cache, dtype=np.float16), case.output(v_cache, dtype=np.float16)]
    q = turn(qg[:, :, 0], q_norm) if heads else np.full((rows, 1, dim), np.nan)
    bindings += [case.output(guarded(q))]
    shape = heads, kv_heads, dim, rotary_dim, batch.max_context, BLOCK
    args = struct.pack("=6IfI", *shape, EPS, gated)
    case.launch(geometry.rotary(heads, kv_heads, rows + GUARD_ROWS), args, *bindings)
    return case


@dataclass(frozen=True)
class Heads:
    """Of an attention layer, and what its rows see: the target's unless said otherwise."""

    num: int
    num_kv: int
    dim: int = DIM
    gated: bool = True
    causal: bool = True
    window: int = 0

    def label(self) -> str:
        words = [f"{self.num}/{self.num_kv} heads of {self.dim}"]
        words += ["plain"] * (not self.gated) + ["all rows"] * (not self.causal)
        return ", ".join([*words, *([f"window {self.window}"] * bool(self.window))])

    def seen(self, position: int, end_position: int) -> np.ndarray:
        """The positions that a query at `position` sees."""
        distance = position - np.arange(end_position)
        visible = distance >= 0 if self.causal else np.ones(end_position, bool)
        return np.flatnonzero(visible & (np.abs(distance) < (self.window or end_position)))


def attention_case(heads: Heads, batch: Batch, max_splits: int = 128, spare_rows: int = 2) -> Case:
    """spare_rows: rows that the plan can hold beyond those of the step."""
    case = Case(f"attention {heads.label()}, at most {max_splits} splits, {batch.label()}", 5e-4)
    if max(batch.counts) <= geometry.MAX_DECODE_ROWS:
        case.tolerance = 1e-5
    rng, a, rows = rng_of(case.name), batch.arrays(), batch.rows
    gpu, dim, scale = geometry.Gpu(max_splits=max_splits), heads.dim, heads.dim**-0.5
    num_tiles = (max(batch.slots) + 1) * batch.max_context // BLOCK
    # What no row may look at is NaN: positions behind a sequence, slots of others.
    k_cache = np.full((num_tiles, heads.num_kv, dim, BLOCK), np.nan, np.float16)
    v_cache = np.full((num_tiles, heads.num_kv, BLOCK, dim), np.nan, np.float16)
    q, qg = normal(rng, rows, heads.num, dim), normal(rng, rows, heads.num, 2, dim)
    row, expected = 0, np.empty((rows, heads.num, dim))
    for count, valid, slot in zip(batch.counts, batch.kv_valid, batch.slots, strict=True):
        end = valid + count
        keys = normal(rng, end, heads.num_kv, dim).astype(np.float16)
        values = normal(rng, end, heads.num_kv, dim).astype(np.float16)
        for p in range(end):
            tile, place = divmod(slot * batch.max_context + p, BLOCK)
            k_cache[tile, :, :, place], v_cache[tile, :, place] = keys[p], values[p]
        for i in range(count):
            seen = heads.seen(valid + i, end)
            for h in range(heads.num):
                kv = h // (heads.num // heads.num_kv)
                s = keys[seen, kv].astype(float) @ q[row, h] * scale
                p = np.exp(s - s.max())
                expected[row, h] = p @ values[seen, kv].astype(float) / p.sum()
            row += 1
    if heads.gated:
        expected *= sigmoid(qg[:, :, 1].astype(float))
    names = ("header", "query_start_loc", "sequence_slots", "batched_kv_valid")
    bindings = [case.input(a[name]) for name in names]
    bindings += [case.input(x) for x in (q, k_cache, v_cache, qg if heads.gated else q)]
    sequences = len(batch.counts) + 1
    max_rows = rows + spare_rows
    num_bytes = geometry.attention_workspace_bytes(gpu, heads.num, dim, max_rows, sequences)
    workspace = np.full(num_bytes, 0xFF, np.uint8)
    bindings += [case.output(guarded(expected)), case.input(workspace)]
    shape = heads.num, heads.num_kv, dim, batch.max_context, BLOCK
    sight = heads.gated, heads.causal, heads.window, 0
    args = struct.pack("=5IfQ4I", *shape, scale, num_bytes, *sight)
    launches = geometry.attention(gpu, heads.num, heads.num_kv, dim, rows + spare_rows, sequences)
    case.launch(launches, args, *bindings)
    return case


TAPE_ROWS = 18


def new_tape(num_slots: int, num_floats: int) -> tuple[np.ndarray, np.ndarray]:
    """A tape [bank, slot, row, stride] at the start, and what is expected of it: all NaN."""
    shape = 2, num_slots, TAPE_ROWS, -(-num_floats // 4) * 4 + 4
    return np.full(shape, np.nan, np.float32), np.full(shape, np.nan)


def strides(memory: np.ndarray) -> list[int]:
    """Of all axes, in elements."""
    return [stride // memory.itemsize for stride in memory.strides]


def conv_case(key_heads: int, v_channels: int, batch: Batch, head_dim: int = 128) -> Case:
    channels = 2 * key_heads * head_dim + v_channels
    case = Case(f"conv {channels} channels, {key_heads} heads of {head_dim}, {batch.label()}", 2e-6)
    rng, a, rows = rng_of(case.name), batch.arrays(), batch.rows
    u, w = normal(rng, rows, channels), normal(rng, 4, channels)
    num_slots = max(batch.slots) + 1
    tails = np.full((2, num_slots, 3, channels), np.nan, np.float32)
    tails_expected = np.full(tails.shape, np.nan)
    tape, tape_expected = new_tape(num_slots, channels)
    y = np.empty((rows, channels))
    for s, slot in enumerate(batch.slots):
        first, end = a["query_start_loc"][s : s + 2]
        bank, count = a["bank"][s], a["pending"][s]
        before = np.zeros((3, channels))
        if batch.kv_valid[s]:
            before = tails[bank, slot] = tails_expected[bank, slot] = normal(rng, 3, channels)
        replayed = normal(rng, count, channels)
        for memory in (tape, tape_expected):
            memory[bank, slot, :count, :channels] = replayed
        window = np.concatenate([before, replayed, u[first:end]]).astype(float)
        is_bound = s in batch.bound
        tails_expected[1 - bank, slot] = window[count : count + 3] if is_bound else window[-3:]
        if is_bound:
            tape_expected[1 - bank, slot, : end - first, :channels] = u[first:end]
        for t, row in enumerate(range(first, end)):
            x = (window[count + t : count + t + 4] * w).sum(0)
            y[row] = x * sigmoid(x)
    heads = y[:, : 2 * key_heads * head_dim].reshape(rows, 2, key_heads, head_dim)
    heads /= np.sqrt((heads**2).sum(-1, keepdims=True) + EPS)
    heads[:, 0] *= head_dim**-0.5
    names = ("header", "query_start_loc", "sequence_slots", "batched_kv_valid", "bank")
    bindings = [case.input(a[name]) for name in names] + [case.input(u), case.input(w)]
    bindings += [case.output(tails_expected, tails), case.output(guarded(y))]
    bindings += [case.input(a["state"]), case.input(a["pending"])]
    bindings += [case.output(tape_expected, tape)]
    args = struct.pack(
        "=IIIffI5Q",
        *(channels, key_heads, head_dim, EPS, head_dim**-0.5, 0),
        *(*strides(tails)[:2], *strides(tape)[:3]),
    )
    launch = geometry.conv(
        channels, head_dim, tape.shape[-1], rows + GUARD_ROWS, len(batch.slots) + 1
    )
    case.launch(launch, args, *bindings)
    return case


@dataclass
class DeltaHead:
    """The delta rule of one value head, row by row in float64."""

    state: np.ndarray  # [KEY, dv]

    def replay(self, k: np.ndarray, d: np.ndarray, decay: float) -> None:
        self.state = decay * self.state + np.outer(k, d)

    def step(self, k: np.ndarray, v: np.ndarray, decay: float, beta: float) -> np.ndarray:
        """Returns d."""
        d = beta * (v - decay * (k @ self.state))
        self.replay(k, d, decay)
        return d


def delta_case(key_heads: int, value_heads: int, batch: Batch, spare_rows: int = 2) -> Case:
    case = Case(f"delta {key_heads}/{value_heads} heads, {batch.label()}", 5e-6)
    rng, a, rows, dv = rng_of(case.name), batch.arrays(), batch.rows, 128
    channels = 2 * key_heads * KEY + value_heads * dv
    y = normal(rng, rows, channels)
    q, k, v = np.split(y, [key_heads * KEY, 2 * key_heads * KEY], axis=1)
    q, k = q.reshape(rows, key_heads, KEY), k.reshape(rows, key_heads, KEY)
    q /= 11 * np.linalg.norm(q, axis=-1, keepdims=True)
    k[1:] += k[:-1]  # neighbours are alike, as in text
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    alpha, b = normal(rng, rows, value_heads), 2 * normal(rng, rows, value_heads)
    ssm_a, dt_bias = -np.exp(normal(rng, value_heads) - 2), normal(rng, value_heads)
    num_slots = max(batch.slots) + 1
    states = np.full((2, num_slots, value_heads, KEY, dv), np.nan, np.float32)
    states_expected = np.full(states.shape, np.nan)
    num_k, num_d = key_heads * KEY, value_heads * dv
    tape, tape_expected = new_tape(num_slots, num_k + num_d + value_heads)
    o = np.empty((rows, value_heads, dv))
    decay = np.exp(ssm_a.astype(float) * np.log1p(np.exp(alpha.astype(float) + dt_bias)))
    beta = sigmoid(b.astype(float))
    for s, slot in enumerate(batch.slots):
        first, end = a["query_start_loc"][s : s + 2]
        bank = a["bank"][s]
        for t in range(a["pending"][s]):
            row = normal(rng, num_k + num_d + value_heads)
            row[:num_k] /= np.linalg.norm(row[:num_k]) / np.sqrt(key_heads)
            row[num_k + num_d :] = sigmoid(row[num_k + num_d :])
            tape[bank, slot, t, : len(row)] = tape_expected[bank, slot, t, : len(row)] = row
        for h in range(value_heads):
            head, key = DeltaHead(np.zeros((KEY, dv))), h % key_heads
            if batch.kv_valid[s]:
                states[bank, slot, h] = normal(rng, KEY, dv)
                head.state = states[bank, slot, h].astype(float)
                states_expected[bank, slot, h] = head.state
            for t in range(a["pending"][s]):
                row = tape[bank, slot, t].astype(float)
                d = row[num_k + h * dv : num_k + (h + 1) * dv]
                head.replay(row[key * KEY : (key + 1) * KEY], d, row[num_k + num_d + h])
            states_expected[1 - bank, slot, h] = head.state
            for t, row in enumerate(range(first, end)):
                value = v[row, h * dv : (h + 1) * dv]
                d = head.step(k[row, key].astype(float), value, decay[row, h], beta[row, h])
                o[row, h] = q[row, key] @ head.state
                if s in batch.bound:
                    target = tape_expected[1 - bank, slot, t]
                    target[key * KEY : (key + 1) * KEY] = k[row, key]
                    target[num_k + h * dv : num_k + (h + 1) * dv] = d
                    target[num_k + num_d + h] = decay[row, h]
            if s not in batch.bound:
                states_expected[1 - bank, slot, h] = head.state
    names = ("header", "query_start_loc", "sequence_slots", "batched_kv_valid", "bank")
    bindings = [case.input(a[name]) for name in names]
    bindings += [case.input(x) for x in (y, alpha, b, ssm_a, dt_bias)]
    bindings += [case.output(states_expected, states), case.output(guarded(o))]
    bindings += [case.input(a["state"]), case.input(a["pending"])]
    bindings += [case.output(tape_expected, tape)]
    args = struct.pack(
        "=4I5Q2I",
        *(key_heads, value_heads, KEY, dv),
        *(*strides(states)[:2], *strides(tape)[:3]),
        *(geometry.TAPE, 0),
    )
    launches = geometry.delta(
        *(value_heads, KEY, dv, tape.shape[-1], geometry.TAPE),
        *(rows + spare_rows, len(batch.counts) + 1),
    )
    case.launch(launches, args, *bindings)
    return case


def attention_cases() -> list[Case]:
    long = Batch([1], [33 * BLOCK - 1], [0], 34 * BLOCK)  # more blocks than splits
    cases = [
        attention_case(Heads(2, 1), Batch([1], [0], [0])),
        attention_case(Heads(4, 2), Batch([1, 2], [127, 0], [1, 0])),
        attention_case(Heads(4, 1), Batch([4, 1], [255, 300], [0, 1])),
        attention_case(Heads(6, 1), Batch([2], [300], [0]), max_splits=2),
        attention_case(Heads(3, 1), Batch([1], [5], [0])),
        attention_case(Heads(2, 1), long),
        attention_case(Heads(4, 2), Batch([9], [0], [0])),
        attention_case(Heads(4, 1), Batch([5, 6], [60, 190], [1, 0])),
        attention_case(Heads(6, 1), Batch([1, 11, 3], [70, 121, 0], [0, 2, 1])),
    ]
    # Drafters': blocks of a few rows; windows that begin within a block, or end within it.
    few, block = Batch([2, 4, 1], [0, 255, 300], [1, 0, 2]), Batch([16, 5], [250, 3], [0, 1])
    for causal in (True, False):
        for window in (0, 100):
            heads = Heads(8, 2, 128, gated=False, causal=causal, window=window)
            cases += [attention_case(heads, few), attention_case(heads, block)]
    narrow = Heads(2, 1, 128, gated=False, causal=False, window=3)
    cases += [attention_case(narrow, few, max_splits=2), attention_case(narrow, block)]
    # Tiles whose caches are split, in three parts and in two.
    cases += [attention_case(Heads(4, 2), Batch([6], [1200], [0], 1280))]
    wide = Heads(4, 1, 128, gated=False, causal=False, window=1000)
    cases += [attention_case(wide, Batch([2, 9], [30, 1700], [1, 0], 1792))]
    return [*cases, attention_case(Heads(6, 1, 128, window=130), few)]


def all_cases() -> list[Case]:
    packed = Batch([1, 3, 7], [130, 0, 125], [2, 0, 1])
    cases = [rotary_case(4, 2, packed), rotary_case(6, 1, packed, 64, 16)]
    cases += [rotary_case(2, 2, packed, 96, 32)]
    cases += [rotary_case(4, 2, packed, 128, 128, gated=False)]
    cases += [rotary_case(0, 2, packed, 128, 128, gated=False)]
    cases += attention_cases()

    # Drafts, tapes to replay, and a sequence that does nothing else.
    drafts = Batch(
        [3, 0, 16, 1, 2],
        [9, 4, 130, 5, 0],
        [1, 0, 2, 4, 3],
        bound=(0, 2, 4),
        pending={0: 2, 1: 16, 3: 5},
    )
    cases += [
        conv_case(2, 512, packed),
        conv_case(1, 64, Batch([2, 1, 5], [3, 0, 9], [0, 2, 1]), 64),
        conv_case(1, 200, Batch([4], [0], [0]), 128),
        conv_case(1, 200, drafts),
        conv_case(2, 64, Batch([0], [8], [1], pending={0: 1}), 64),
    ]
    cases += [
        delta_case(1, 2, Batch([1, 3, 16], [9, 0, 5], [1, 0, 2])),
        delta_case(2, 4, Batch([1], [0], [0]), 0),
        delta_case(1, 1, Batch([32], [4], [0])),
        delta_case(1, 2, Batch([17, 2, 77], [0, 8, 1], [0, 2, 1])),
        delta_case(2, 4, drafts),
        delta_case(1, 2, Batch([18, 40, 0], [5, 7, 1], [2, 0, 1], 512, (0,), {1: 3, 2: 1})),
    ]
    return cases
