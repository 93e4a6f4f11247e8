"""llama.cpp's server as a process that answers token ids."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from generation import Generation

START_SECONDS, ANSWER_SECONDS = 60.0, 300.0


class LlamaServer:
    """One slot, prompts cold; `options` are further ones of its command line."""

    def __init__(self, binaries: Path, model: Path, threads: int, context: int, *options: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [str(binaries / "llama-server"), "-m", str(model), "--port", str(port)]
        command += ["-t", str(threads), "-tb", str(threads), "-c", str(context), "-np", "1"]
        self._command = [*command, *options]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def generate(
        self, prompts: Sequence[list[int]], max_tokens: int, *, stop_ids: Collection[int] = ()
    ) -> Generation:
        """As the engine's: greedy, one prompt at a time. Its clock starts at the first token too.

        The model's own end tokens count, whatever stop_ids has, unless it is empty.
        """
        total = Generation()
        for prompt in prompts:
            total.add(self._answer(prompt, max_tokens, ignore_eos=not stop_ids))
        return total

    def _answer(self, prompt: list[int], max_tokens: int, *, ignore_eos: bool) -> Generation:
        answer = self._post(
            "/completion",
            prompt=prompt,
            n_predict=max_tokens,
            temperature=0,
            ignore_eos=ignore_eos,
            return_tokens=True,
            cache_prompt=False,
        )
        timings = answer["timings"]
        num_tokens = timings["predicted_n"] - 1
        num_rows = num_tokens - timings.get("draft_n_accepted", 0)
        return Generation(
            [answer["tokens"]], num_tokens, num_rows, [round(1e6 * timings["predicted_ms"])]
        )

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                with urlopen(f"{self._url}/health", timeout=ANSWER_SECONDS):
                    return
            except URLError as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    command = " ".join(self._command)
                    raise SystemExit(f"it does not start or answer: {command}") from error
                time.sleep(0.1)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = Request(self._url + path, json.dumps(body).encode(), headers)
        with urlopen(request, timeout=ANSWER_SECONDS) as response:
            return json.load(response)
