"""The network's operations as dispatches for the metal device.

Arguments and operands are the cpu device's (kernels/args.h). The differences: linear kernels read
activations as they are, some operations take several launches and a workspace, and there are plans
for several numbers of rows, whose matrix products are different kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from . import metal_geometry as geometry
from .config import ModelConfig
from .device import Device
from .errors import ModelError
from .kernels import LOGIT_ROWS, ROWS, CpuKernels
from .metal_geometry import Gpu
from .metal_source import kernel_source
from .operands import AttentionHeads, BatchMemory, Limits
from .plan import Launch, Memory, Operand, PlanBuilder, Value

ROW_CLASSES = (1, 2, 3, 4, 8, 16, 32)  # rows up to which a plan of its own is faster


def row_classes(device: Device, pass_tokens: int) -> list[int]:
    """The most rows of each plan that a device wants, ascending. Any plan is right for fewer rows,
    and for at most as many sequences.
    """
    smaller = ROW_CLASSES if device.kind == "metal" else ()
    return [*(rows for rows in smaller if rows < pass_tokens), pass_tokens]


class MetalKernels(CpuKernels):
    """Operations of the network as dispatches for the metal device."""

    def __init__(
        self,
        plan: PlanBuilder,
        config: ModelConfig,
        batch: BatchMemory,
        limits: Limits,
        max_sequences: int,
    ):
        super().__init__(plan, config, batch, limits)
        info = plan.device.info
        self.gpu = Gpu.of(info.name, info.isa)
        self.page_bytes = info.sparse_page_bytes[0] if info.page_table_reason else 0
        self.max_sequences = min(max_sequences, limits.pass_tokens)

    def _quantize(self, x: Value) -> Value:
        return x

    def argmax(self, logits: Memory, num_vocab_rows: int, ids: Memory) -> None:
        num_tokens = min(self.config.num_tokens, num_vocab_rows)
        num_bytes = geometry.argmax_workspace_bytes(num_tokens, self._capacity(LOGIT_ROWS))
        workspace = self.plan.value(LOGIT_ROWS, 0, num_bytes)
        args = struct.pack("=III", num_tokens, num_vocab_rows, LOGIT_ROWS)
        self._run("argmax", args, logits, ids, workspace, out=(ids, workspace))

    def _attention_workspace_bytes(self, heads: AttentionHeads) -> int:
        return geometry.attention_workspace_bytes(
            self.gpu, heads.num_heads, heads.head_dim, self._capacity(ROWS), self.max_sequences
        )

    def _launch(
        self,
        kernel: str,
        args: bytes,
        operands: Sequence[Operand],
        out: Sequence[Operand],
        label: str,
    ) -> None:
        launches = [self._pipeline(launch) for launch in self._geometry(kernel, args)]
        self.plan.launch(launches, args, operands, out, label)

    def _pipeline(self, launch: geometry.Launch) -> Launch:
        source = kernel_source(launch.library)
        pipeline = self.plan.device.pipeline(launch.kernel, source, launch.constants)
        return Launch(pipeline, launch.grid, launch.threads, launch.barrier)

    def _geometry(self, kernel: str, args: bytes) -> list[geometry.Launch]:
        """Launches of an operation: its shape is in the words of its arguments."""
        name, weight_type = kernel, ""
        for typed in _TYPED:
            if kernel.startswith(f"{typed}_"):
                name, weight_type = typed, kernel.removeprefix(f"{typed}_")
        if name not in _GEOMETRY:
            raise ModelError(f"there is no Metal kernel {kernel}")
        words = struct.unpack(f"={len(args) // 4}I", args)
        launches = _GEOMETRY[name](self, words, weight_type)
        return launches if isinstance(launches, list) else [launches]


_TYPED = ("embed", "linear", "select_path")  # with a type as a suffix
_Words = tuple[int, ...]
_GEOMETRY: dict[
    str, Callable[[MetalKernels, _Words, str], geometry.Launch | list[geometry.Launch]]
] = {
    "embed": lambda k, w, kind: geometry.embed(kind, w[0], k._capacity(ROWS)),
    "linear": lambda k, w, kind: geometry.linear(k.gpu, kind, w[0], w[1], k._capacity(w[2])),
    "rmsnorm": lambda k, w, _: geometry.rmsnorm(w[0], k._capacity(w[1])),
    "gather": lambda k, w, _: geometry.gather(w[0], k._capacity(w[1])),
    "swiglu": lambda k, w, _: geometry.swiglu(w[0], k._capacity(w[1])),
    "rotary": lambda k, w, _: geometry.rotary(w[0], w[1], k._capacity(ROWS), k.page_bytes),
    "attention": lambda k, w, _: geometry.attention(
        k.gpu, w[0], w[1], w[2], k._capacity(ROWS), k.max_sequences, k.page_bytes
    ),
    "conv": lambda k, w, _: geometry.conv(w[0], w[2], w[14], k._capacity(ROWS), k.max_sequences),
    "delta": lambda k, w, _: geometry.delta(
        w[1], w[2], w[3], w[12], w[14], k._capacity(ROWS), k.max_sequences
    ),
    "gated_norm": lambda k, w, _: geometry.gated_norm(w[0], w[1], k._capacity(w[2])),
    "tap": lambda k, w, _: geometry.tap(w[0], w[2], k._capacity(w[1])),
    "scatter_ids": lambda k, w, _: geometry.scatter_ids(k._capacity(w[0])),
    "block_conv": lambda k, w, _: geometry.block_conv(w[0], w[1], k._capacity(ROWS)),
    "select_path": lambda k, w, kind: geometry.select_path(kind, w[0], k._capacity(LOGIT_ROWS)),
    "argmax": lambda k, w, _: geometry.argmax(w[0], k._capacity(w[2])),
}
