"""The commands with the bundled model: what goes to stdout, what to stderr, and how they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

QUESTION = "Count from 5 to 12."


def mtlqwen(
    *arguments: str, stdin: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mtlqwen", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_generate_prints_the_answer_and_nothing_else():
    done = mtlqwen("generate", QUESTION)
    assert done.returncode == 0
    assert "5, 6, 7, 8, 9, 10, 11, 12" in done.stdout
    assert done.stdout.endswith("\n")
    assert re.fullmatch(r"mtlqwen: using the bundled demo model.*\n", done.stderr)


def test_top_p_0_leaves_the_likeliest_token_alone():
    options = ("--no-think", "--max-tokens", "12")
    sampled = mtlqwen("generate", QUESTION, *options, "--temperature", "5", "--top-p", "0")
    assert sampled.stdout == mtlqwen("generate", QUESTION, *options).stdout


def test_verbose_adds_progress_and_figures_on_stderr():
    done = mtlqwen("generate", QUESTION, "-v", "--max-tokens", "40")
    assert "loading" in done.stderr
    assert re.search(r"prompt \d+ tokens.*generated \d+ tokens.*first token.*MiB", done.stderr)
    assert "tokens/s" not in done.stdout


def test_json_is_one_object_with_all_figures():
    done = mtlqwen("generate", QUESTION, "--json", "--no-think", "--max-tokens", "10")
    figures = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert figures["generated_tokens"] == len(figures["token_ids"]) == 10
    assert figures["text"].startswith("5, 6")
    for name in (
        "prefill_tokens_per_second",
        "generate_tokens_per_second",
        "time_to_first_token_s",
        "peak_rss_bytes",
        "prompt_tokens",
    ):
        assert figures[name] > 0, name


def test_ids_go_in_and_out_as_they_are():
    chat = json.loads(mtlqwen("generate", QUESTION, "--json", "--max-tokens", "12").stdout)
    prompt = "<|im_start|>user\nCount from 5 to 12.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    raw = json.loads(mtlqwen("generate", prompt, "--raw", "--json", "--max-tokens", "12").stdout)
    assert raw["token_ids"] == chat["token_ids"]

    from mtlqwen.gguf import open_gguf
    from mtlqwen.load import demo_model_path
    from mtlqwen.tokenizer import Tokenizer

    ids = Tokenizer.from_gguf(open_gguf(demo_model_path())).encode(prompt, control=True)
    for text in (",".join(map(str, ids)), " ".join(map(str, ids)) + "\n"):
        done = mtlqwen("generate", "--ids", "--max-tokens", "12", stdin=text)
        assert done.stdout == ",".join(map(str, chat["token_ids"])) + "\n"


def test_the_prompt_comes_from_argument_file_or_stdin(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(QUESTION)
    options = ("--max-tokens", "30", "--no-think")
    answers = {
        mtlqwen("generate", QUESTION, *options).stdout,
        mtlqwen("generate", "--prompt-file", str(file), *options).stdout,
        mtlqwen("generate", *options, stdin=QUESTION).stdout,
        mtlqwen("generate", "--prompt-file", "-", *options, stdin=QUESTION).stdout,
    }
    assert len(answers) == 1


def test_an_answer_that_never_left_its_thoughts_is_explained():
    done = mtlqwen("generate", QUESTION, "--max-tokens", "3")
    assert done.stdout == "\n"
    assert "--no-think" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-m", "/nonexistent/model.gguf", "x"], "/nonexistent/model.gguf"),
        (["-m", __file__, "x"], "test_cli_demo_model.py"),
        (["--ctx", "1000000", "x"], "1000000"),
        (["--ctx", "256", "word " * 2000], "256"),
        (["--device", "abacus", "x"], "abacus"),
        (["--ids", "999999"], "999999"),
    ],
)
def test_a_failure_is_one_line_and_status_1(arguments, named):
    done = mtlqwen("generate", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2  # the demo model's notice comes first


def test_a_reader_that_leaves_ends_it_quietly():
    with subprocess.Popen(
        [sys.executable, "-m", "mtlqwen", "generate", QUESTION, "--no-think", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.read(5)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=30) == 141
    assert errors.count("\n") == 1


def test_ctrl_c_ends_it_cleanly(heed_signals):
    with subprocess.Popen(
        [sys.executable, "-m", "mtlqwen", "generate", QUESTION, "--no-think", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    ) as process:
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
    assert "Traceback" not in errors


def test_chat_remembers_and_forgets():
    done = mtlqwen(
        "chat",
        "--no-think",
        "--system",
        "You are brief.",
        stdin="My name is Rosa.\n/unknown\n/clear\nCount from 1 to 3.\n/exit\nnever read\n",
    )
    assert done.returncode == 0
    assert "1, 2, 3" in done.stdout
    assert "/clear" in done.stderr


def test_what_the_encoding_of_stdout_lacks_is_replaced():
    wild = ("--no-think", "--ignore-eos", "--temperature", "20", "--seed", "3", "-n", "24")
    utf_8 = mtlqwen("generate", "hi", *wild)
    assert "\ufffd" in utf_8.stdout
    ascii_only = mtlqwen("generate", "hi", *wild, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ascii_only.stdout == utf_8.stdout.replace("\ufffd", "?"), ascii_only.stderr


def test_chat_asks_on_after_a_line_that_is_no_text():
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    lines = "\udcff\nCount from 1 to 3.\n"
    done = mtlqwen("chat", "--no-think", stdin=lines, env=strict, errors="surrogateescape")
    assert (done.returncode, done.stdout) == (0, "1, 2, 3\n")
    assert "unpaired surrogate" in done.stderr and "/clear" not in done.stderr


def test_chat_tells_how_to_go_on_from_a_full_context():
    lines = "My name is Rosa. " * 60 + "\nCount from 1 to 3.\n"
    done = mtlqwen("chat", "--no-think", "--ctx", "128", stdin=lines)
    assert (done.returncode, done.stdout) == (0, "1, 2, 3\n")
    assert "/clear starts anew" in done.stderr


def test_chat_on_a_terminal_survives_ctrl_c_and_leaves_on_ctrl_d(heed_signals):
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mtlqwen", "chat", "--no-think", "--ignore-eos"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=heed_signals,
    ) as process:
        os.close(terminal)
        seen = read_until(controller, b"> ")
        os.write(controller, b"Count from 5 to 12.\n")
        seen = read_until(controller, b"5, 6, 7")
        process.send_signal(signal.SIGINT)
        seen = read_until(controller, b"> ")
        os.write(controller, b"\x04")
        assert process.wait(timeout=30) == 0
    assert b"Traceback" not in seen
    os.close(controller)


def read_until(descriptor: int, wanted: bytes, limit_s: float = 60) -> bytes:
    seen, end_s = b"", time.monotonic() + limit_s
    while wanted not in seen:
        assert time.monotonic() < end_s, seen
        seen += os.read(descriptor, 4096)
    return seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_obeyed_in_order(number, heed_signals):
    endless = ("--ignore-eos", "--no-think", "--max-tokens", "16000")
    with subprocess.Popen(
        [sys.executable, "-m", "mtlqwen", "generate", QUESTION, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    ) as process:
        assert process.stdout.read(1) == "5"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert out.endswith("\n")  # what is open was closed
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("closing", "prompt", "status"), [("<&-", [], 2), (">&-", [QUESTION], 0), ("2>&-", ["hi"], 0)]
)
def test_standard_streams_may_be_closed(closing, prompt, status):
    command = [sys.executable, "-m", "mtlqwen", "generate", "--max-tokens", "2", *prompt]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_bench_prints_a_row_per_test():
    done = mtlqwen("bench", "-p", "16,32", "-n", "4", "--batch", "1,2", "-r", "2")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| demo-q8_0")]
    assert [row.split(" | ")[6] for row in rows] == ["pp16", "pp32", "pp16", "pp32", "tg4", "tg4"]
    assert all("±" in row for row in rows)


def test_bench_as_json_has_every_sample():
    done = mtlqwen("bench", "-p", "16", "-n", "0", "-r", "3", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["test"] == "pp16"
    assert len(row["samples"]) == 3
    assert row["tokens_per_second"] > 0


def test_bench_says_what_was_drafted_and_accepted_by_position():
    drafting = ("--drafter", "demo", "--draft-width", "3")
    done = mtlqwen("bench", "-p", "0", "-n", "8", "-r", "1", "--json", "-v", *drafting)
    report = json.loads(done.stdout)
    assert report["tokens_per_pass"] >= 1
    assert report["drafted"][0] >= report["drafted"][2] > 0 == report["drafted"][3]
    assert all(a <= d for a, d in zip(report["accepted"], report["drafted"], strict=True))
    assert "tokens per pass; % accepted by position" in done.stderr


def test_devices_lists_the_cpu():
    assert "cpu" in mtlqwen("devices").stdout
    (cpu,) = json.loads(mtlqwen("devices", "--json").stdout)["devices"]
    assert cpu["device"] == "cpu"
    assert cpu["num_threads"] >= 1


def test_info_describes_the_model():
    assert "qwen35" in mtlqwen("info").stdout
    described = json.loads(mtlqwen("info", "--json").stdout)
    assert described["architecture"] == "qwen35"
    assert described["num_parameters"] == 9_480_240


def test_info_takes_the_file_as_the_other_commands_do_too():
    from mtlqwen.load import demo_drafter_path

    file = str(demo_drafter_path())
    described = {mtlqwen("info", *given, "--json").stdout for given in ([file], ["-m", file])}
    assert len(described) == 1
    assert json.loads(described.pop())["num_parameters"] != 9_480_240


def test_convert_writes_another_type(tmp_path):
    from mtlqwen.load import demo_model_path

    out = tmp_path / "demo-q4.gguf"
    done = mtlqwen("convert", str(demo_model_path()), str(out), "--type", "q4_0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answer = mtlqwen("generate", "-m", str(out), QUESTION, "--no-think")
    assert answer.stdout.startswith("5, 6, 7")


def test_convert_offers_every_file_type():
    from mtlqwen.commands.convert import FILE_TYPES as offered
    from mtlqwen.convert import FILE_TYPES

    assert set(offered) == set(FILE_TYPES)


def test_serve_answers_until_it_is_told_to_stop():
    with subprocess.Popen(
        [sys.executable, "-m", "mtlqwen", "serve", "--port", "0", "--alias", "gpt-4o"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "demo model" in process.stderr.readline()
        base = re.search(r"http://127\.0\.0\.1:\d+/v1", process.stderr.readline()).group()
        body = {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        answer = httpx.post(f"{base}/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "5, 6, 7, 8, 9, 10, 11, 12"
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ("", ""))


def test_serve_refuses_an_empty_key_before_it_says_that_it_serves():
    done = mtlqwen("serve", "--port", "0", "--api-key", "")
    assert done.returncode == 1
    assert "the API key is empty" in done.stderr and "serving" not in done.stderr


def test_serve_says_when_the_port_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = mtlqwen("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert done.stderr.count("\n") == 1
