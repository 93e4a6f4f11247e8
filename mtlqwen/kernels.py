"""Which kernel runs an operation of the network on this device, with which arguments.

The argument layouts are those of kernels/args.h; the plan is refused if a size differs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .config import ModelConfig
from .errors import ModelError
from .gguf import TensorType
from .operands import AttentionCache, AttentionHeads, BatchMemory, DeltaState, Limits, TapeRow
from .plan import Memory, Operand, PlanBuilder, Value
from .weights import AttentionMixer, DeltaMixer, Tensor

ROWS, SEQUENCES, LOGIT_ROWS = 0, 1, 2  # words of the batch header
TAPE = 0  # layout of what delta records (docs/benchmarks.md, "Rollback")

FLOAT_TYPES = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16})
UNIT_EPS = 1e-6  # on the sum of squares of q and k, fixed by the architecture

# What shapes the kernels take (docs/cpu-arithmetic.md).
LANES, STRIPE = 16, 32
MAX_HEAD_DIM, MAX_GROUP, MAX_CHANNELS = 512, 96, 1 << 18

# One record of `quantize` holds 256 activations of one row (kernels/cpu/quantize.h).
QUANTIZED_VALUES = 256
QUANTIZED_BYTES = 384

# Partial results of attention split over the cache (kernels/cpu/attention.c).
ATTENTION_WORKSPACE_BYTES = 8 << 20

# Candidates of each piece of a row of logits (kernels/args.h, select_path).
SELECT_CHUNK, SELECT_TOP = 8192, 16


class CpuKernels:
    """Operations of the network as dispatches for the cpu device.

    Quantised matrices read int8 activations: `linear` quantises its input once, however many
    matrices read it.
    """

    def __init__(self, plan: PlanBuilder, config: ModelConfig, batch: BatchMemory, limits: Limits):
        self.plan = plan
        self.config = config
        self.batch = batch
        self.limits = limits
        self._quantized: dict[Value, Value] = {}

    def embed(self, table: Tensor) -> Value:
        num_rows, dim = table.shape
        x = self._value(ROWS, dim)
        args = struct.pack("=IIQ", dim, num_rows, table.row_bytes)
        self._run(
            f"embed_{table.type.name.lower()}", args, self.batch.input_ids, table, x, out=(x,)
        )
        return x

    def rmsnorm(self, x: Value, weight: Tensor, *, eps: float | None = None) -> Value:
        """`eps`: the model's unless given."""
        y = self._value(x.rows, x.dim)
        args = struct.pack("=IIf", x.dim, x.rows, self.config.norm_eps if eps is None else eps)
        self._run("rmsnorm", args, x, weight, y, out=(y,))
        return y

    def linear(
        self, x: Value, weight: Tensor, *, add_to: Value | None = None, out: Memory | None = None
    ) -> Value:
        """x W^T, or add_to += x W^T; `out` puts it in memory that outlives the step."""
        out_dim, in_dim = weight.shape
        y = add_to or self._value(x.rows, out_dim)
        target = out or y
        source = x if weight.type in FLOAT_TYPES else self._quantize(x)
        args = struct.pack("=IIIIQ", in_dim, out_dim, x.rows, add_to is not None, weight.row_bytes)
        kernel = f"linear_{weight.type.name.lower()}"
        self._run(
            kernel,
            args,
            weight,
            source,
            target,
            out=(target,),
            label=f"{kernel} {out_dim}x{in_dim}",
        )
        self._quantized.pop(y, None)  # what was quantised of y is no longer y
        return y

    def gather_logit_rows(self, x: Value) -> Value:
        return self._gather(x, x.dim, self.batch.logit_rows, LOGIT_ROWS)

    def gather_features(self, features: Memory, dim: int, feature_rows: Memory) -> Value:
        """The features [.., dim] of each row of this batch."""
        return self._gather(features, dim, feature_rows, ROWS)

    def swiglu(self, gate: Value, up: Value) -> Value:
        y = self._value(gate.rows, gate.dim)
        self._run("swiglu", struct.pack("=II", gate.dim, gate.rows), gate, up, y, out=(y,))
        return y

    def rotary(
        self,
        qg: Value,
        k: Value,
        v: Value,
        mixer: AttentionMixer,
        rope: Memory,
        cache: AttentionCache,
    ) -> Value:
        """Norms and turns q and k, appends k and v to the cache; returns q."""
        q = self._value(ROWS, self.config.num_heads * self.config.head_dim)
        queries = (qg, mixer.query_norm, q)
        self._rotary(self._heads, queries, (k, v, mixer.key_norm), rope, cache, is_gated=True)
        return q

    def attention(self, q: Value, qg: Value, cache: AttentionCache) -> Value:
        """Causal attention over the cache, times the sigmoid of qg's gate lanes."""
        return self._attention(self._heads, q, qg, cache, is_causal=True, window=0)

    def plain_rotary(
        self,
        heads: AttentionHeads,
        q: Value,
        k: Value,
        v: Value,
        norms: tuple[Tensor, Tensor],
        rope: Memory,
        cache: AttentionCache,
    ) -> Value:
        """rotary where q has no gate lanes; norms of queries and of keys."""
        turned = self._value(ROWS, q.dim)
        query_norm, key_norm = norms
        queries = (q, query_norm, turned)
        self._rotary(heads, queries, (k, v, key_norm), rope, cache, is_gated=False)
        return turned

    def inject(
        self,
        heads: AttentionHeads,
        k: Value,
        v: Value,
        key_norm: Tensor,
        rope: Memory,
        cache: AttentionCache,
    ) -> None:
        """Norms and turns k, appends k and v to the cache: rows that only others look at."""
        self._rotary(heads, None, (k, v, key_norm), rope, cache, is_gated=False)

    def plain_attention(
        self,
        heads: AttentionHeads,
        q: Value,
        cache: AttentionCache,
        *,
        is_causal: bool,
        window: int | None,
    ) -> Value:
        """Attention without a gate. Visible is what is not ahead of a causal row and nearer than
        `window` positions; a row that is not causal sees all rows of its sequence in this step.
        """
        return self._attention(heads, q, None, cache, is_causal=is_causal, window=window or 0)

    def conv(self, u: Value, mixer: DeltaMixer, state: DeltaState) -> Value:
        """Causal convolution and SiLU over q, k, v channels; q and k to unit length."""
        c = self.config
        _check_heads("key heads", c.key_dim, LANES)
        if c.num_channels % c.key_dim or c.num_channels > MAX_CHANNELS:
            raise ModelError(
                f"a convolution of {c.num_channels} channels cannot be run: the kernels take"
                f" multiples of the {c.key_dim} of a head up to {MAX_CHANNELS}"
            )
        y = self._value(ROWS, c.num_channels)
        row = TapeRow.of(c)
        args = struct.pack(
            "=IIIffIQQQQQ",
            c.num_channels,
            c.num_key_heads,
            c.key_dim,
            UNIT_EPS,
            c.key_dim**-0.5,
            0,
            state.tail_bank_stride,
            state.tail_slot_stride,
            state.tape_bank_stride,
            state.tape_slot_stride,
            row.num_floats,
        )
        operands = (u, mixer.conv, state.tails, y)
        tape = (self.batch.state, self.batch.pending, state.tape.at(4 * row.raw_offset))
        out = (state.tails, y, state.tape)
        self._run("conv", args, *self._sequences(), *operands, *tape, out=out)
        return y

    def delta(self, qkv: Value, a: Value, b: Value, mixer: DeltaMixer, state: DeltaState) -> Value:
        """The gated delta rule over each sequence's rows."""
        c = self.config
        _check_heads("value heads", c.value_dim, STRIPE)
        o = self._value(ROWS, c.num_value_heads * c.value_dim)
        args = struct.pack(
            "=IIIIQQQQQII",
            c.num_key_heads,
            c.num_value_heads,
            c.key_dim,
            c.value_dim,
            state.state_bank_stride,
            state.state_slot_stride,
            state.tape_bank_stride,
            state.tape_slot_stride,
            TapeRow.of(c).num_floats,
            TAPE,
            0,
        )
        operands = (qkv, a, b, mixer.decay, mixer.dt_bias, state.states, o)
        tape = (self.batch.state, self.batch.pending, state.tape)
        out = (state.states, o, state.tape)
        self._run("delta", args, *self._sequences(), *operands, *tape, out=out)
        return o

    def gated_norm(self, o: Value, z: Value, weight: Tensor) -> Value:
        c = self.config
        y = self._value(o.rows, o.dim)
        args = struct.pack("=IIIf", c.num_value_heads, c.value_dim, o.rows, c.norm_eps)
        self._run("gated_norm", args, o, z, weight, y, out=(y,))
        return y

    def argmax(self, logits: Memory, num_vocab_rows: int, ids: Memory) -> None:
        """The likeliest token of each row of logits [.., num_vocab_rows]: of the vocabulary or its
        beginning.
        """
        num_tokens = min(self.config.num_tokens, num_vocab_rows)
        args = struct.pack("=III", num_tokens, num_vocab_rows, LOGIT_ROWS)
        self._run("argmax", args, logits, ids, out=(ids,))

    def tap(self, x: Value, features: Memory, tap: int, num_taps: int) -> None:
        """Copies x to its columns of features [.., num_taps * dim], from the header's row on."""
        args = struct.pack("=IIII", x.dim, x.rows, num_taps * x.dim, tap * x.dim)
        self._run("tap", args, x, features, out=(features,))

    def scatter_ids(self, ids: Memory, target_rows: Memory, input_ids: Memory) -> None:
        """input_ids[target_rows] = ids, for every row with logits of this batch."""
        args = struct.pack("=I", LOGIT_ROWS)
        self._run("scatter_ids", args, ids, target_rows, input_ids, out=(input_ids,))

    def block_conv(
        self, x: Value, dyn: Value, base: Tensor, *, side: int, add_to: Value | None = None
    ) -> Value:
        """Each row and the one before it in its sequence, times base [2, 2, dim] + dyn [2, 2,
        groups] at `side`: 0 before the sublayer, 1 behind it.
        """
        y = add_to or self._value(ROWS, x.dim)
        group = 4 * x.dim // dyn.dim
        args = struct.pack("=IIII", x.dim, group, side, add_to is not None)
        self._run("block_conv", args, self.batch.row_sequence, x, dyn, base, y, out=(y,))
        self._quantized.pop(y, None)
        return y

    def select_path(
        self,
        logits: Memory,
        num_vocab_rows: int,
        h: Value,
        predecessor: Tensor,
        successor: Tensor,
        ids: Memory,
    ) -> None:
        """ids of the best path through the 16 best tokens of each row of logits
        [.., num_vocab_rows]; h [rows, rank], codebooks [whole vocabulary, rank].
        """
        batch, num_tokens = self.batch, min(self.config.num_tokens, num_vocab_rows)
        num_chunks = -(-num_tokens // SELECT_CHUNK)
        workspace_bytes = 4 * self.limits.max_logit_rows * num_chunks * SELECT_TOP
        workspace = self.plan.value(LOGIT_ROWS, 0, workspace_bytes)
        args = struct.pack("=III", num_tokens, num_vocab_rows, h.dim)
        operands = (batch.input_ids, batch.logit_rows, logits, h, predecessor, successor)
        kernel = f"select_path_{predecessor.type.name.lower()}"
        self._run(kernel, args, *operands, ids, workspace, out=(ids, workspace))

    @property
    def _heads(self) -> AttentionHeads:
        c = self.config
        return AttentionHeads(c.num_heads, c.num_kv_heads, c.head_dim, c.rotary_dim, c.norm_eps)

    def _gather(self, x: Value | Memory, dim: int, indices: Memory, rows: int) -> Value:
        y = self._value(rows, dim)
        self._run("gather", struct.pack("=II", dim, rows), indices, x, y, out=(y,))
        return y

    def _rotary(
        self,
        heads: AttentionHeads,
        queries: tuple[Value, Tensor, Value] | None,
        keys_values: tuple[Value, Value, Tensor],
        rope: Memory,
        cache: AttentionCache,
        *,
        is_gated: bool,
    ) -> None:
        """queries: q, its norm and where the turned q goes; keys_values: k, v and the norm of k."""
        _check_heads("attention heads", heads.head_dim, LANES)
        k, v, key_norm = keys_values
        q, query_norm, turned = queries or (k, key_norm, k)  # not touched
        args = struct.pack(
            "=IIIIIIfI",
            heads.num_heads if queries else 0,
            heads.num_kv_heads,
            heads.head_dim,
            heads.rotary_dim,
            self.limits.max_context,
            self.limits.block_tokens,
            heads.norm_eps,
            is_gated,
        )
        rows = (self.batch.row_sequence, self.batch.positions, self.batch.sequence_slots)
        operands = (q, k, v, query_norm, key_norm, rope, cache.keys, cache.values, turned)
        out = (cache.keys, cache.values, *((turned,) if queries else ()))
        self._run("rotary", args, *rows, *operands, out=out)

    def _attention(
        self,
        heads: AttentionHeads,
        q: Value,
        qg: Value | None,
        cache: AttentionCache,
        *,
        is_causal: bool,
        window: int,
    ) -> Value:
        group = heads.num_heads // heads.num_kv_heads
        if group > MAX_GROUP:
            raise ModelError(
                f"{group} query heads to a key head cannot be run: the kernels take {MAX_GROUP}"
            )
        o = self._value(ROWS, heads.num_heads * heads.head_dim)
        workspace = self.plan.value(ROWS, 0, self._attention_workspace_bytes(heads))
        args = struct.pack(
            "=IIIIIfQIIII",
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            self.limits.max_context,
            self.limits.block_tokens,
            heads.head_dim**-0.5,
            workspace.num_bytes,
            qg is not None,
            is_causal,
            window,
            0,
        )
        batch = self.batch
        sequences = (batch.query_start_loc, batch.sequence_slots, batch.batched_kv_valid)
        operands = (q, cache.keys, cache.values, qg or q, o, workspace)
        self._run("attention", args, *sequences, *operands, out=(o, workspace))
        return o

    def _attention_workspace_bytes(self, heads: AttentionHeads) -> int:
        return ATTENTION_WORKSPACE_BYTES

    def _quantize(self, x: Value) -> Value:
        if x not in self._quantized:
            capacity = self._capacity(x.rows)
            num_records = -(-x.dim // QUANTIZED_VALUES) * capacity
            record = self.plan.value(x.rows, x.dim, num_records * QUANTIZED_BYTES)
            self._run("quantize", struct.pack("=II", x.dim, x.rows), x, record, out=(record,))
            self._quantized[x] = record
        return self._quantized[x]

    def _sequences(self) -> tuple[Memory, ...]:
        batch = self.batch
        return batch.query_start_loc, batch.sequence_slots, batch.batched_kv_valid, batch.bank

    def _value(self, rows: int, dim: int) -> Value:
        return self.plan.value(rows, dim, 4 * dim * self._capacity(rows))

    def _capacity(self, rows: int) -> int:
        return self.limits.max_logit_rows if rows == LOGIT_ROWS else self.limits.pass_tokens

    def _run(
        self,
        kernel: str,
        args: bytes,
        *operands: Value | Memory | Tensor,
        out: tuple[Value | Memory, ...],
        label: str = "",
    ) -> None:
        bound = [
            Memory(operand.buffer, operand.offset_bytes) if isinstance(operand, Tensor) else operand
            for operand in operands
        ]
        self._launch(kernel, args, [self.batch.header, *bound], out, label or kernel)

    def _launch(
        self,
        kernel: str,
        args: bytes,
        operands: Sequence[Operand],
        out: Sequence[Operand],
        label: str,
    ) -> None:
        self.plan.dispatch(kernel, args, operands, out, label)


def _check_heads(what: str, dim: int, multiple: int) -> None:
    if dim % multiple or dim > MAX_HEAD_DIM:
        raise ModelError(
            f"{what} of {dim} values cannot be run: the kernels take multiples of {multiple} up to"
            f" {MAX_HEAD_DIM}"
        )
