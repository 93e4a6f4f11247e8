"""Small random drafters, run on a device over features and blocks of the test's choice."""

from types import SimpleNamespace

import numpy as np

from mtlqwen.device_memory import DeviceMemory
from mtlqwen.drafter import DrafterConfig, config_metadata, expected_tensors
from mtlqwen.drafter_runner import RECENT_TOKENS, DrafterRunner, Target
from mtlqwen.gguf import GGUFWriter, TensorType, open_gguf
from mtlqwen.kernels import CpuKernels
from mtlqwen.operands import AttentionCache, BatchMemory, Limits
from mtlqwen.plan import Memory
from mtlqwen.weights import Tensor

NUM_VOCAB_ROWS, NUM_TOKENS, MASK = 400, 390, 391  # the rows from 390 on are no tokens
MAX_CONTEXT, BLOCK_TOKENS, MAX_ROWS, MAX_SLOTS = 128, 16, 64, 3


def small_config(windows, causal, block_size, *, is_2=False):
    return DrafterConfig(
        hidden_dim=64,
        ffn_dim=96,
        num_layers=len(windows),
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rope_theta=1e4,
        norm_eps=2.0**-20,
        num_vocab_rows=NUM_VOCAB_ROWS,
        block_size=block_size,
        mask_id=MASK,
        taps=(0, 2, 3),
        windows=windows,
        causal=causal,
        conv_group=16 if is_2 else 0,
        selector_rank=32 if is_2 else 0,
    )


def write_drafter(path, config, rng):
    """A file with random F32 weights that keep activations near one; its tensors by name."""
    weights = {}
    for name, shape in expected_tensors(config).items():
        draw = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            weights[name] = 1 + 0.3 * draw
        elif name.endswith("_conv_base"):
            weights[name] = 0.3 * draw + np.float32([[[1], [0]], [[1], [0]]])
        elif name.startswith("selector_"):
            weights[name] = draw * np.float32(shape[-1] ** -0.5 if "hidden" in name else 0.5)
        else:
            weights[name] = draw * np.float32(2 * shape[-1] ** -0.5)
    metadata = {"general.architecture": "dflash"} | config_metadata(config)
    tensors = {name: (TensorType.F32, values.shape) for name, values in weights.items()}
    with GGUFWriter(path, metadata, tensors) as writer:
        for name, values in weights.items():
            writer.write(name, values.reshape(-1, values.shape[-1]).view(np.uint8))
    return weights


class SmallDrafter:
    """A drafter of a file on a device, behind a target of which only table and head exist."""

    def __init__(self, device, path, embedding, head):
        self.device, self.memory = device, DeviceMemory(device)
        self._gguf = open_gguf(path)
        self.config = DrafterConfig.from_gguf(self._gguf)
        c = self.config
        self.features = self._f32(MAX_ROWS, len(c.taps) * c.hidden_dim)
        self.logits = self._f32(MAX_ROWS, NUM_VOCAB_ROWS)
        table, matrix = self._f32(*embedding.shape), self._f32(*head.shape)
        table[1][:], matrix[1][:] = embedding, head
        argmax = Memory(self.memory.buffer(4 * MAX_ROWS), 0, "argmax")
        names = BatchMemory.__dataclass_fields__
        arrays, operands = self.memory.arrays(dict.fromkeys(names, MAX_ROWS))
        self.target_ids = arrays["input_ids"]
        target = Target(
            Tensor(table[0], 0, TensorType.F32, embedding.shape),
            Tensor(matrix[0], 0, TensorType.F32, head.shape),
            BatchMemory(**operands),
            Memory(self.features[0], 0, "features"),
            Memory(self.logits[0], 0, "logits"),
            argmax,
            weight_bytes=table[0].num_bytes + matrix[0].num_bytes,
        )
        model = SimpleNamespace(num_vocab_rows=NUM_VOCAB_ROWS, num_tokens=NUM_TOKENS)
        limits = Limits(MAX_ROWS, MAX_ROWS, MAX_CONTEXT, BLOCK_TOKENS)
        self.runner = DrafterRunner(
            self.memory,
            self._gguf,
            c,
            target,
            [self._cache(layer) for layer in range(c.num_layers)],
            lambda builder, batch, _: CpuKernels(builder, model, batch, limits),
            limits,
            MAX_SLOTS,
        )

    def close(self):
        self.runner.close()
        self.memory.free()
        self._gguf.close()

    def inject(self, features, places):
        """Features [R, taps * hidden]; places: slot and position of each row."""
        context, num_rows = self.runner.context, len(features)
        rows = np.arange(num_rows)[::-1]  # where they lie is told, not implied
        self.features[1][rows] = features
        context.feature_rows[:num_rows] = rows
        context.row_sequence[:num_rows], context.positions[:num_rows] = np.transpose(places)
        context.header[0] = num_rows
        self._run()
        context.header[0] = 0

    def draft(self, blocks, *, num_rare=RECENT_TOKENS):
        """blocks: (slot, length of its context, ids). Logits [drafts, vocabulary] and drafts.

        num_rare: of the recent tokens; few leave the logits of the common ones [drafts, common].
        """
        drafts, row = self.runner.drafts, 0
        masks = []
        for index, (slot, length, ids) in enumerate(blocks):
            rows = slice(row, row + len(ids))
            drafts.query_start_loc[index] = row
            drafts.input_ids[rows] = ids
            drafts.row_sequence[rows] = index
            drafts.positions[rows] = length + np.arange(len(ids))
            drafts.sequence_slots[index] = slot
            drafts.batched_kv_valid[index] = length
            masks += range(row + 1, row + len(ids))
            row += len(ids)
        drafts.query_start_loc[len(blocks)] = row
        drafts.logit_rows[: len(masks)] = masks
        drafts.target_rows[: len(masks)] = masks[::-1]
        drafts.header[:4] = row, len(blocks), len(masks), num_rare
        self._run()
        drafts.header[:4] = 0
        return self.logits[1][: len(masks)].copy(), self.target_ids[masks[::-1]]

    def _run(self):
        self.device.wait(self.device.submit(self.runner.plans()))

    def _f32(self, *shape):
        buffer = self.memory.buffer(4 * shape[0] * shape[1])
        return buffer, buffer.array(np.float32, shape)

    def _cache(self, layer):
        c = self.config
        num_bytes = 2 * MAX_SLOTS * MAX_CONTEXT * c.num_kv_heads * c.head_dim
        keys, values = self.memory.buffer(num_bytes), self.memory.buffer(num_bytes)
        return AttentionCache(Memory(keys, 0, ("k", layer)), Memory(values, 0, ("v", layer)))
