"""`mtlqwen doctor` on the cpu, and what of the network its kernel cases cover."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from click.testing import CliRunner

from mtlqwen.cli import cli
from mtlqwen.device import Device
from mtlqwen.doctor import examine
from mtlqwen.doctor.cases import Case, all_cases
from mtlqwen.doctor.kernels import Outcome, check_kernels, difference
from mtlqwen.gguf import open_gguf
from mtlqwen.load import demo_drafter_path, demo_model_path
from mtlqwen.plan import PlanBuilder
from mtlqwen.runner import Runner


@pytest.fixture
def labels(monkeypatch) -> set[str]:
    """What is put into any plan from now on."""
    seen: set[str] = set()
    launch = PlanBuilder.launch

    def record(self, launches, args, operands, writes, label):
        seen.add(label)
        launch(self, launches, args, operands, writes, label)

    monkeypatch.setattr(PlanBuilder, "launch", record)
    return seen


def test_cases_cover_every_operation_of_the_model(labels, device):
    with open_gguf(demo_drafter_path()) as drafter:
        runner = Runner(device, demo_model_path(), drafter, max_context=256, max_slots=2)
        runner.close()
    networks = set(labels)
    labels.clear()
    outcomes = list(check_kernels(lambda: Device.open(num_threads=1), device))
    assert networks - labels == set()
    assert all(outcome.is_right for outcome in outcomes)


def test_cpu_is_right():
    findings = list(examine("cpu", num_tokens=3, head=(512, 256)))
    assert [finding for finding in findings if not finding.is_right] == []


def test_an_interrupted_kernel_is_no_failed_check(monkeypatch, device):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    def attention(bench):  # its plans hold mapped pages
        return [case for case in all_cases(bench) if case.name == "attention"]

    monkeypatch.setattr("mtlqwen.doctor.kernels.all_cases", attention)
    monkeypatch.setattr(Device, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(check_kernels(lambda: Device.open(num_threads=1), device))


def test_difference_is_in_units_of_the_root_mean_square():
    wanted = np.array([3.0, -3.0, 3.0], np.float32)
    assert difference([np.array([3.0, -1.5, 3.0])], [wanted]) == 0.5
    assert difference([wanted, wanted * np.nan], [wanted, wanted]) == np.inf
    assert difference([np.zeros(3)], [np.zeros(3)]) == 0


def test_outcome_tells_the_rows_that_are_wrong():
    outcome = Outcome(Case("delta", 1e-4, lambda bench: ()))
    outcome.errors = {1: 2e-5, 4: 0.25, 8: np.inf}
    outcome.refusals = {48: "no such kernel"}
    assert not outcome.is_right
    wanted = "4 rows differ by 2.5e-01, 1e-04 allowed; 8 rows differ by inf, 1e-04 allowed"
    assert str(outcome) == f"{wanted}; 48 rows: no such kernel"


@pytest.mark.skipif(sys.platform == "darwin", reason="has a metal device")
def test_missing_metal_device_is_a_failure_with_its_reason():
    result = CliRunner().invoke(cli, ["doctor", "--metal"])
    assert 'FAIL  device: no device "metal"' in result.output
    assert result.exit_code != 0
