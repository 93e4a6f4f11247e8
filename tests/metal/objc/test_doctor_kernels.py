"""`mtlqwen doctor --metal` on the fake beside the real cpu device: what it runs, what it finds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from mtlqwen import abi, device, metal_kernels
from mtlqwen.device import Device
from mtlqwen.doctor import cases, examine, kernels
from mtlqwen.doctor.kernels import Outcome, check_kernels
from mtlqwen.gguf import TensorType

from .two_shims import TwoShims


@pytest.fixture
def both(fake, monkeypatch) -> Iterator[None]:
    """The metal device is the fake's, the cpu device the installed library's."""
    monkeypatch.setattr(device, "lib", TwoShims(device.lib, abi.lib))
    yield
    gc.collect()  # what is left is freed by the library that made it


@pytest.fixture
def only(monkeypatch) -> Callable[..., None]:
    """Leaves but the named cases to be run."""
    every = kernels.all_cases

    def choose(*names: str) -> None:
        monkeypatch.setattr(
            kernels, "all_cases", lambda b: [c for c in every(b) if c.name in names]
        )

    return choose


@pytest.fixture
def change_kernel(monkeypatch) -> Callable[[str, str, str], None]:
    """Replaces a piece of the text of a library of kernels."""
    right = metal_kernels.kernel_source

    def change(library: str, piece: str, other: str) -> None:
        def source(name: str) -> str:
            text = right(name)
            assert name != library or text.count(piece) == 1
            return text.replace(piece, other) if name == library else text

        monkeypatch.setattr(metal_kernels, "kernel_source", source)

    return change


def outcomes() -> dict[str, Outcome]:
    with Device.open("cpu", num_threads=2) as cpu:
        found = check_kernels(lambda: Device.open("metal"), cpu)
        return {outcome.case.name: outcome for outcome in found}


def test_every_kernel_and_the_model_are_right(both, monkeypatch):
    monkeypatch.setattr(cases, "WEIGHT_TYPES", [TensorType.Q4_K])  # compiling the others takes long
    findings = list(examine("metal", num_tokens=3, head=(512, 256)))
    assert [finding for finding in findings if not finding.is_right] == []
    report = {finding.what: finding.detail for finding in findings}
    assert {"system", "device", "sparse memory", "kernel delta", "bandwidth"} <= set(report)
    assert "GB/s over a head of 512 x 256" in report["bandwidth"]
    assert "tokens/s" in report["demo model on metal"]
    assert "tokens/s" in report["demo model on metal, 4 drafts a pass"]


def test_kernels_are_right_where_caches_are_page_tables(both, fake, only):
    fake.set(version=1506)
    only("rotary", "attention", "rotary of its context", "attention of drafter layer 0")
    found = outcomes()
    assert len(found) == 4
    assert [name for name, outcome in found.items() if not outcome.is_right] == []


def test_wrong_kernel_is_named_and_the_others_are_right(both, only, change_kernel):
    only("rmsnorm", "swiglu", "gather")
    change_kernel("rmsnorm", "+ args.eps", "+ 0.01f")
    found = outcomes()
    assert [name for name, outcome in found.items() if not outcome.is_right] == ["rmsnorm"]
    assert "1 rows differ by" in str(found["rmsnorm"])


def test_kernel_that_does_not_compile_is_named_and_the_others_are_right(both, only, change_kernel):
    only("swiglu", "gather")
    change_kernel("swiglu", "kernel void", "\n#error wrong on purpose\nkernel void")
    found = outcomes()
    assert not found["swiglu"].is_right
    assert "wrong on purpose" in str(found["swiglu"])
    assert found["gather"].is_right


def test_kernel_that_loses_the_device_does_not_stop_the_others(both, fake, only):
    only("rmsnorm", "gather", "swiglu")
    fake.set(fail_dispatch=fake.get("dispatches") + 2)
    found = outcomes()
    assert [name for name, outcome in found.items() if not outcome.is_right] == ["rmsnorm"]
    assert sorted(found["rmsnorm"].errors) == [1]
    assert "injected fault" in found["rmsnorm"].refusals[4]
