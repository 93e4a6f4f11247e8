"""What operations of the network work on beside activations: the batch, caches, states."""

from __future__ import annotations

from dataclasses import dataclass

from .config import ModelConfig
from .plan import Memory


@dataclass(frozen=True)
class BatchMemory:
    """The arrays of one step (docs/architecture.md, "The batch arrays") as operands."""

    header: Memory
    input_ids: Memory
    row_sequence: Memory
    positions: Memory
    query_start_loc: Memory
    sequence_slots: Memory
    batched_kv_valid: Memory
    bank: Memory
    state: Memory
    pending: Memory
    logit_rows: Memory


@dataclass(frozen=True)
class AttentionHeads:
    """The shape of an attention layer without gates: a drafter's."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    norm_eps: float


@dataclass(frozen=True)
class AttentionCache:
    """K and V of one layer: [slot, max_context] positions in tiles of block_tokens."""

    keys: Memory
    values: Memory


@dataclass(frozen=True)
class DeltaState:
    """GDN state, conv tail and tape of one layer, at [bank 0][slot 0]; strides in floats."""

    states: Memory
    tails: Memory
    tape: Memory  # row 0 of max_draft_rows
    state_bank_stride: int
    state_slot_stride: int
    tail_bank_stride: int
    tail_slot_stride: int
    tape_bank_stride: int
    tape_slot_stride: int


@dataclass(frozen=True)
class TapeRow:
    """What the tape keeps of a draft row in one layer, in floats: k, d, decays, raw channels."""

    num_floats: int
    raw_offset: int

    @classmethod
    def of(cls, config: ModelConfig) -> TapeRow:
        c = config
        delta = c.num_key_heads * c.key_dim + c.num_value_heads * (c.value_dim + 1)
        return cls(delta + c.num_channels, delta)


@dataclass(frozen=True)
class Limits:
    """What one step may hold."""

    pass_tokens: int
    max_logit_rows: int
    max_context: int
    block_tokens: int
    max_draft_rows: int = 0  # of a sequence that verifies a draft: the rows of its tape
