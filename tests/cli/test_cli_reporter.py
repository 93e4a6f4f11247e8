"""What a terminal shows while something takes its time."""

from __future__ import annotations

import pytest

from mtlqwen.commands.terminal import Reporter


@pytest.mark.parametrize("name", ["model[q4].gguf", "a[/b].gguf"])
def test_a_name_in_brackets_is_shown_as_it_is(name, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    reporter = Reporter(verbose=True)
    reporter.is_terminal = True
    with reporter.working(f"loading {name}"):
        pass
    with reporter.progress(f"writing {name}") as progress:
        progress(1, 2)
    assert capsys.readouterr().err.count(name) >= 2
