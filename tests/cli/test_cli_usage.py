"""Wrong usage: one line on stderr, exit status 2, nothing on stdout."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mtlqwen.cli import COMMANDS, run


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nosuch"], "nosuch"),
        (["generate", "--foo"], "--foo"),
        (["generate", "--top-p", "3", "x"], "--top-p is 3.0; it must be a number from 0 to 1"),
        (["generate", "--temperature", "nan", "x"], "--temperature is nan"),
        (["generate", "--top-k", "x", "x"], "--top-k"),
        (["generate", "--max-tokens", "0", "x"], "--max-tokens is 0"),
        (["generate", ""], "empty"),
        (["generate", "x", "--stop", ""], "--stop"),
        (["generate", "x", "y"], "y"),
        (["generate", "x", "--prompt-file", "-"], "--prompt-file"),
        (["generate", "--prompt-file", "/nonexistent/p"], "/nonexistent/p"),
        (["generate", "1", "--raw", "--ids"], "--ids"),
        (["generate", "1", "--ids", "--system", "x"], "--system"),
        (["generate", "x", "--raw", "--no-think"], "--think"),
        (["generate", "--ids", "1,x"], "'x'"),
        (["generate", "--ids", "1,-2"], "'-2'"),
        (["generate", "--ids", "1" * 5000], "is not a token id"),
        (["generate", "-m", "", "x"], "it is empty"),
        (["info", ""], "it is empty"),
        (["serve", "--prefix-cache-dir", ""], "it is empty"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--kv-memory", "12X"], "12X"),
        (["bench", "-p", "1,x"], "1,x"),
        (["bench", "--batch", "0"], "--batch"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["info", "a.gguf", "-m", "b.gguf"], "FILE is a.gguf and -m b.gguf"),
        (["convert", "/nonexistent/model", "x.gguf"], "/nonexistent/model"),
        (["convert", ".", "x.gguf", "--type", "Q9"], "Q9"),
    ],
)
def test_it_is_told_in_one_line(capsys, arguments, names):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert names in err
    assert err.count("\n") == 1


def test_no_command_shows_the_help(capsys):
    assert run([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_without_loading_the_library(command):
    program = (
        "import sys; from mtlqwen.cli import run; run(sys.argv[1:]); "
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'fastapi', 'rich'} & set(sys.modules); "
        "sys.exit(f'{heavy} imported' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command, "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: mtlqwen {command} ")


def test_ctrl_c_while_modules_are_imported_ends_it_quietly(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "mtlqwen", "--help"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
