"""The kernels of a device against those of another: the same call, the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from ..device import Device
from ..errors import MtlqError
from ..gguf import TensorType, open_gguf
from ..load import demo_drafter_path, demo_model_path
from ..plan import Value
from .cases import Case, all_cases
from .workbench import ROW_COUNTS, Array, Workbench


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


def check_kernels(open_device: Callable[[], Device], reference: Device) -> Iterator[Outcome]:
    """One outcome for each case; one that fails does not stop the others."""
    with ExitStack() as stack, ExitStack() as renewed:
        reference_bench = _open(stack, reference)
        bench = _open(renewed, renewed.enter_context(open_device()))
        for case in all_cases(bench):
            outcome = _try(case, bench, reference_bench)
            if outcome.refusals:  # a device that failed once may be lost
                renewed.close()
                bench = _open(renewed, renewed.enter_context(open_device()))
            yield outcome


def _try(case: Case, bench: Workbench, reference: Workbench) -> Outcome:
    outcome = Outcome(case)
    for num_rows in ROW_COUNTS:
        try:
            results = (each.run(case.operation, num_rows) for each in (bench, reference))
            outcome.errors[num_rows] = difference(*results)
        except MtlqError as error:
            outcome.refusals[num_rows] = str(error)
    return outcome


def head_bandwidth(device: Device, num_rows: int, dim: int) -> float:
    """GB/s at which one row is multiplied by a matrix [num_rows, dim] of Q8_0."""

    def multiply(bench: Workbench) -> tuple[Value]:
        # A byte everywhere: all pages are there, and the weights do not matter.
        head = bench.tensor(TensorType.Q8_0, (num_rows, dim), raw=1)
        return (bench.kernels.linear(bench.value(dim), head),)

    with ExitStack() as stack:
        nanoseconds = _open(stack, device).fastest_ns(multiply, 1)
    return num_rows * TensorType.Q8_0.row_bytes(dim) / nanoseconds


def _open(stack: ExitStack, device: Device) -> Workbench:
    model, drafter = (
        stack.enter_context(open_gguf(path)) for path in (demo_model_path(), demo_drafter_path())
    )
    bench = Workbench(device, model, drafter)
    stack.callback(bench.close)
    return bench


def difference(got: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest of |got - wanted| / rms(wanted) over all results; infinite where one is NaN."""
    errors = []
    for left, right in zip(got, wanted, strict=True):
        left, right = left.astype(np.float64), right.astype(np.float64)
        error = float(np.abs(left - right).max()) / (float(np.sqrt(np.mean(right**2))) or 1.0)
        errors.append(error if np.isfinite(error) else np.inf)
    return max(errors)
