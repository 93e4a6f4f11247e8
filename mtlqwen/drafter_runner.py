"""A drafter on a device: its context, drawn from the target's passes, and its blocks of drafts.

A pass of the target leaves the features of its rows behind those of earlier passes. They become
context before a pass in which somebody drafts, and when there is no room for more: while nobody
drafts that is once in many passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from .device import Plan
from .device_memory import DeviceMemory, RowPlans
from .drafter import DrafterConfig, DrafterWeights
from .drafter_model import DrafterMemory, draft_blocks, inject_context
from .gguf import GGUF
from .kernels import CpuKernels
from .operands import AttentionCache, BatchMemory, Limits
from .plan import Memory, PlanBuilder
from .weights import Tensor

# Tokens of a byte-pair vocabulary come in the order of their merges: the common ones first. Of
# English and of code 96 to 98 % are among these (docs/benchmarks.md, "The drafter's head").
NUM_COMMON_TOKENS = 65_536
RECENT_TOKENS = 256  # of a text: what tells how common those to come are

NewKernels = Callable[[PlanBuilder, BatchMemory, int], CpuKernels]
"""Kernels that record into a builder, over a batch of at most so many rows."""


@dataclass(frozen=True)
class DraftArrays:
    """Host views of the arrays that describe the blocks to draft in a step."""

    # num_rows, num_sequences, num_logit_rows = drafts; most rare tokens of the recent of a sequence
    header: npt.NDArray[np.uint32]
    input_ids: npt.NDArray[np.int32]  # [R]
    row_sequence: npt.NDArray[np.int32]  # [R]
    positions: npt.NDArray[np.int32]  # [R]
    query_start_loc: npt.NDArray[np.int32]  # [S + 1]
    sequence_slots: npt.NDArray[np.int32]  # [S]
    batched_kv_valid: npt.NDArray[np.int32]  # [S]
    logit_rows: npt.NDArray[np.int32]  # [L] rows of the drafts
    target_rows: npt.NDArray[np.int32]  # [L] rows of the target's batch that they become


@dataclass(frozen=True)
class ContextArrays:
    """Host views of the arrays that describe the features that become context in a step."""

    header: npt.NDArray[np.uint32]  # num_rows
    feature_rows: npt.NDArray[np.int32]  # [R] where the features of each row lie
    row_sequence: npt.NDArray[np.int32]  # [R] its slot: sequence_slots counts up
    positions: npt.NDArray[np.int32]  # [R]
    sequence_slots: npt.NDArray[np.int32]  # [S]


@dataclass(frozen=True)
class Target:
    """What a drafter uses of the model it drafts for."""

    embedding: Tensor
    head: Tensor
    batch: BatchMemory
    features: Memory  # f32 [pass_tokens, taps * hidden]
    logits: Memory  # f32 [max_logit_rows, num_vocab_rows]: free until its own pass
    argmax: Memory  # i32 [max_logit_rows]: free until its own pass
    weight_bytes: int


class DrafterRunner:
    """The drafter's weights, arrays and plans. What the arrays describe runs before the target."""

    def __init__(
        self,
        memory: DeviceMemory,
        gguf: GGUF,
        config: DrafterConfig,
        target: Target,
        caches: list[AttentionCache],
        new_kernels: NewKernels,
        limits: Limits,
        max_slots: int,
    ):
        self.num_common_tokens, self.recent_tokens = NUM_COMMON_TOKENS, RECENT_TOKENS
        self._config = config
        self._target = target
        self._new_kernels = new_kernels
        self._weights = DrafterWeights(memory.device, gguf, config)
        rows, block_rows = limits.pass_tokens, max_slots * config.block_size
        target_rows = self._create_drafts(memory, block_rows, max_slots)
        feature_rows = self._create_context(memory, rows, max_slots)
        self._memory = DrafterMemory(
            rope=memory.rope(config.rope_theta, config.head_dim, limits.max_context),
            caches=caches,
            features=target.features,
            feature_rows=feature_rows,
            logits=target.logits,
            argmax=target.argmax,
            target_rows=target_rows,
            target_ids=target.batch.input_ids,
        )
        self._context_plans = RowPlans(memory, rows, self._record_context)
        heads = [target.head]
        if target.head.shape[0] > NUM_COMMON_TOKENS:
            heads.append(target.head.first_rows(NUM_COMMON_TOKENS))
        records = [partial(self._record_drafts, head) for head in heads]
        self._draft_plans = RowPlans(memory, block_rows, *records)
        self._max_rare = _max_rare_tokens(heads, target.weight_bytes + gguf.num_bytes)

    def close(self) -> None:
        self._context_plans.free()
        self._draft_plans.free()
        self._weights.close()

    def plans(self) -> list[Plan]:
        """What this step runs before the target's plan."""
        num_features, num_rows = self.context.header[0], self.drafts.header[0]
        plans = [self._context_plans.of(num_features)] if num_features else []
        if num_rows:
            is_common = self.drafts.header[3] <= self._max_rare
            plans.append(self._draft_plans.of(num_rows, int(is_common)))
        return plans

    # ---- construction --------------------------------------------------------------------------

    def _create_drafts(self, memory: DeviceMemory, rows: int, slots: int) -> Memory:
        """The arrays of the blocks to draft; where their drafts go."""
        arrays, operands = memory.arrays(
            {
                "header": 16,
                "input_ids": rows,
                "row_sequence": rows,
                "positions": rows,
                "query_start_loc": slots + 1,
                "sequence_slots": slots,
                "batched_kv_valid": slots,
                "logit_rows": rows,
                "target_rows": rows,
            }
        )
        self.drafts = DraftArrays(**arrays)
        target_rows = operands.pop("target_rows")
        self._draft_batch = replace(self._target.batch, **operands)
        return target_rows

    def _create_context(self, memory: DeviceMemory, rows: int, slots: int) -> Memory:
        """The arrays of what becomes context; where its features lie."""
        arrays, operands = memory.arrays(
            {
                "header": 16,
                "feature_rows": rows,
                "row_sequence": rows,
                "positions": rows,
                "sequence_slots": slots,
            }
        )
        self.context = ContextArrays(**arrays)
        self.context.sequence_slots[:] = np.arange(slots)
        feature_rows = operands.pop("feature_rows")
        self._context_batch = replace(self._target.batch, **operands)
        return feature_rows

    def _record_context(self, builder: PlanBuilder, max_rows: int) -> None:
        kernels = self._new_kernels(builder, self._context_batch, max_rows)
        inject_context(kernels, self._weights, self._config, self._memory)

    def _record_drafts(self, head: Tensor, builder: PlanBuilder, max_rows: int) -> None:
        kernels = self._new_kernels(builder, self._draft_batch, max_rows)
        embedding = self._target.embedding
        draft_blocks(kernels, self._weights, self._config, embedding, head, self._memory)


def _max_rare_tokens(heads: Sequence[Tensor], weight_bytes: int) -> int:
    """Rare ones of the recent tokens up to which drafts do without them; -1: never.

    heads: whole, and of the common tokens; weight_bytes: of the target and the drafter. What is not
    read of the head is a share of a pass, what cannot be drafted a share of the drafts, and each
    takes about one behind it along.
    """
    if len(heads) == 1:
        return -1
    whole, common = (head.num_bytes for head in heads)
    return int(RECENT_TOKENS * (whole - common) / (weight_bytes + whole) / 2)
