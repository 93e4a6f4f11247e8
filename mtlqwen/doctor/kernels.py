"""Each kernel that the demo model uses, against the cpu device: the same call, the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from ..device import Device
from ..errors import MtlqError
from ..gguf import GGUF
from ..plan import Value
from ..weights import AttentionMixer, DeltaMixer, Tensor, Weights
from .workbench import ROW_COUNTS, Array, Operation, Workbench

EXACT = 0.0
ROUNDED = 1e-4  # another order of additions, another exponential
HALVES = 4e-3  # products of half precision: weights of a tile, keys and values


@dataclass(frozen=True)
class Case:
    """An operation, and by how much its results may differ, in units of their root mean square."""

    name: str
    tolerance: float
    operation: Operation


@dataclass
class Outcome:
    """The largest difference of a case at each number of rows, or why there is none."""

    case: Case
    errors: dict[int, float] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return not self.refusals and max(self.errors.values()) <= self.case.tolerance

    def __str__(self) -> str:
        """For people: the rows that are wrong, or that all are right."""
        limit = self.case.tolerance
        if self.is_right:
            return f"differs by {max(self.errors.values()):.1e}, {limit:.0e} allowed"
        wrong = [
            f"{rows} rows differ by {error:.1e}, {limit:.0e} allowed"
            for rows, error in self.errors.items()
            if not error <= limit
        ]
        return "; ".join([*wrong, *(f"{rows} rows: {why}" for rows, why in self.refusals.items())])


def check_kernels(device: Device, reference: Device, gguf: GGUF) -> Iterator[Outcome]:
    """One outcome for each case; one that fails does not stop the others."""
    with ExitStack() as stack:
        benches = [Workbench(each, gguf) for each in (device, reference)]
        for bench in benches:
            stack.callback(bench.close)
        for case in cases(benches[0].weights):
            outcome = Outcome(case)
            for num_rows in ROW_COUNTS:
                try:
                    got, wanted = (bench.run(case.operation, num_rows) for bench in benches)
                    outcome.errors[num_rows] = difference(got, wanted)
                except MtlqError as error:
                    outcome.refusals[num_rows] = str(error)
            yield outcome


def head_bandwidth(device: Device, gguf: GGUF, num_rows: int, dim: int) -> float:
    """GB/s at which one row is multiplied by a matrix [num_rows, dim] of Q8_0."""
    bench = Workbench(device, gguf)
    try:
        head = bench.matrix(num_rows, dim)
        nanoseconds = bench.fastest_ns(lambda b: (b.kernels.linear(b.value(dim), head),), 1)
        return num_rows * head.row_bytes / nanoseconds
    finally:
        bench.close()


def difference(got: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest of |got - wanted| / rms(wanted) over all results; infinite where one is NaN."""
    errors = []
    for left, right in zip(got, wanted, strict=True):
        left, right = left.astype(np.float64), right.astype(np.float64)
        error = float(np.abs(left - right).max()) / (float(np.sqrt(np.mean(right**2))) or 1.0)
        errors.append(error if np.isfinite(error) else np.inf)
    return max(errors)


def cases(weights: Weights) -> list[Case]:
    """Every operation of the network, and every shape and type of matrix."""
    found = [
        Case(f"embed_{weights.embedding.type.name.lower()}", ROUNDED, _embed),
        Case("rmsnorm", ROUNDED, _rmsnorm),
        Case("gather", EXACT, _gather),
        Case("swiglu", ROUNDED, _swiglu),
        Case("rotary", HALVES, _rotary),
        Case("attention", HALVES, _attention),
        Case("conv", ROUNDED, _conv),
        Case("delta", ROUNDED, _delta),
        Case("gated_norm", ROUNDED, _gated_norm),
        Case("argmax", EXACT, _argmax),
    ]
    seen = set()
    for index, matrix in enumerate(_matrices(weights)):
        name = f"linear_{matrix.type.name.lower()} {matrix.shape[0]}x{matrix.shape[1]}"
        if name not in seen:
            seen.add(name)
            found.append(Case(name, HALVES, _linear(index)))
    return found


def _matrices(weights: Weights) -> list[Tensor]:
    found = [weights.output]
    for layer in weights.layers:
        mixer = layer.mixer
        found += [layer.ffn_gate, layer.ffn_up, layer.ffn_down, mixer.output]
        if isinstance(mixer, AttentionMixer):
            found += [mixer.query, mixer.key, mixer.value]
        else:
            found += [mixer.qkv, mixer.gate, mixer.alpha, mixer.beta]
    return found


def _attention_mixer(b: Workbench) -> AttentionMixer:
    return next(x.mixer for x in b.weights.layers if isinstance(x.mixer, AttentionMixer))


def _delta_mixer(b: Workbench) -> DeltaMixer:
    return next(x.mixer for x in b.weights.layers if isinstance(x.mixer, DeltaMixer))


def _linear(index: int) -> Operation:
    def product_and_sum(b: Workbench) -> Sequence[Value]:
        matrix = _matrices(b.weights)[index]
        x = b.value(matrix.shape[1])
        total = b.value(matrix.shape[0])
        return b.kernels.linear(x, matrix), b.kernels.linear(x, matrix, add_to=total)

    return product_and_sum


def _embed(b: Workbench) -> Sequence[Value]:
    return (b.kernels.embed(b.weights.embedding),)


def _rmsnorm(b: Workbench) -> Sequence[Value]:
    return (b.kernels.rmsnorm(b.value(b.config.hidden_dim), b.weights.output_norm),)


def _gather(b: Workbench) -> Sequence[Value]:
    return (b.kernels.gather_logit_rows(b.value(b.config.hidden_dim)),)


def _swiglu(b: Workbench) -> Sequence[Value]:
    return (b.kernels.swiglu(b.value(b.config.ffn_dim), b.value(b.config.ffn_dim)),)


def _rotary(b: Workbench) -> Sequence[Value | Array]:
    c = b.config
    queries = b.value(2 * c.num_heads * c.head_dim)
    keys, values = (b.value(c.num_kv_heads * c.head_dim) for _ in range(2))
    mixer = _attention_mixer(b)
    q = b.kernels.rotary(queries, keys, values, mixer, b.rope, b.cache)
    return q, b.cached


def _attention(b: Workbench) -> Sequence[Value]:
    num_lanes = b.config.num_heads * b.config.head_dim
    q, gates = b.value(num_lanes), b.value(2 * num_lanes)
    return (b.kernels.attention(q, gates, b.cache),)


def _conv(b: Workbench) -> Sequence[Value | Array]:
    y = b.kernels.conv(b.value(b.config.num_channels), _delta_mixer(b), b.delta_state)
    return y, b.tails


def _delta(b: Workbench) -> Sequence[Value | Array]:
    c = b.config
    qkv = b.value(c.num_channels, scale=0.9 * c.key_dim**-0.5)  # keys no longer than 1
    alpha, beta = (b.value(c.num_value_heads) for _ in range(2))
    o = b.kernels.delta(qkv, alpha, beta, _delta_mixer(b), b.delta_state)
    return o, b.states


def _gated_norm(b: Workbench) -> Sequence[Value]:
    dim = b.config.num_value_heads * b.config.value_dim
    mixer = _delta_mixer(b)
    return (b.kernels.gated_norm(b.value(dim), b.value(dim), mixer.norm),)


def _argmax(b: Workbench) -> Sequence[Array]:
    b.kernels.argmax(b.logits, b.ids)
    return (b.id_numbers,)
