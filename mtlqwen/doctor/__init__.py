"""Checks a device on the machine where it runs: what `mtlqwen doctor` prints."""

from __future__ import annotations

import platform
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import __version__, abi
from ..device import Device
from ..errors import MtlqError
from ..generation import Completion
from ..llm import LLM
from ..sampling import SamplingParams
from .kernels import check_kernels, head_bandwidth

PROMPT = "Tell me a story about a fox and a lantern."
STORE = """
#include <metal_stdlib>
using namespace metal;
kernel void store(device uint *x [[buffer(0)]], constant uint &first [[buffer(30)]],
                  uint i [[thread_position_in_grid]])
{
    x[i] = first + i;
}
kernel void store_in_page(device const ulong *table [[buffer(0)]],
                          constant uint &first [[buffer(30)]], uint i [[thread_position_in_grid]])
{
    ((device uint *)table[0])[i] = first + i;
}
"""
NUM_WORDS = 32
MAX_GAP = 0.05  # of the two best logits: the cpu quantises activations, Metal does not
FIRST = 1000
DRAFT_WIDTH = 4
HEAD = (248_320, 1024)  # of a model of 0.8 billion parameters: larger than any cache


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    is_right: bool
    detail: str


def examine(kind: str, num_tokens: int = 64, head: tuple[int, int] = HEAD) -> Iterator[Finding]:
    """The checks in order; after one that fails only what does not need it goes on.

    head: rows and columns of the matrix whose bandwidth is measured.
    """
    yield Finding("system", True, f"mtlqwen {__version__}, {platform.platform()}")
    try:
        device = Device.open(kind)
    except MtlqError as error:
        yield Finding("device", False, str(error))
        return
    with device:
        info = device.info
        yield Finding(
            "device",
            True,
            f"{info.name}, {info.isa}, {info.memory_bytes / 2**30:.1f} GiB, buffers of at most "
            f"{info.max_buffer_bytes / 2**30:.1f} GiB",
        )
        if kind == "metal":
            yield _attempt("sparse memory", lambda: _check_sparse(device))
    yield from _check_kernels(kind)
    yield _attempt("bandwidth", lambda: _measure_head(kind, *head))
    yield from _check_model(kind, num_tokens)


def _check_kernels(kind: str) -> Iterator[Finding]:
    """The cpu is compared with its own portable kernels, every other device with the cpu."""
    isa = "portable" if kind == "cpu" else None
    try:
        with Device.open("cpu", isa=isa) as reference:
            for outcome in check_kernels(lambda: Device.open(kind), reference):
                yield Finding(f"kernel {outcome.case.name}", outcome.is_right, str(outcome))
    except MtlqError as error:
        yield Finding("kernels", False, str(error))


def _measure_head(kind: str, num_rows: int, dim: int) -> tuple[bool, str]:
    with Device.open(kind) as device:
        speed = head_bandwidth(device, num_rows, dim)
    return True, f"{speed:.1f} GB/s over a head of {num_rows:,} x {dim:,} in Q8_0"


def _attempt(what: str, check: Callable[[], tuple[bool, str]]) -> Finding:
    try:
        return Finding(what, *check())
    except MtlqError as error:
        return Finding(what, False, str(error))


def _check_sparse(device: Device) -> tuple[bool, str]:
    """For each page size: a kernel writes through a mapping, and the heap has what it wrote."""
    page_sizes, reason = device.info.sparse_page_bytes, device.info.page_table_reason
    for page_bytes in page_sizes:
        heap, sparse = (
            device.heap(4 * page_bytes, page_bytes),
            device.sparse(8 * page_bytes, page_bytes),
        )
        ops = np.zeros(1, abi.MAP_OP)
        ops[0] = abi.MAP, sparse.id, heap.id, 0, 5, 2, 1
        records = np.zeros(1, abi.DISPATCH)
        kernel = "store_in_page" if reason else "store"
        records["pipeline"] = device.pipeline(kernel, STORE).id
        records["grid"], records["group"] = 1, (NUM_WORDS, 1, 1)
        records["grid_buffer"], records["num_bindings"], records["args_bytes"] = abi.NO_ID, 1, 4
        bindings = np.zeros(1, abi.BINDING)
        bindings["buffer"], bindings["offset_bytes"] = sparse.id, 5 * page_bytes
        plan = device.plan(records, bindings, struct.pack("=I12x", FIRST))
        device.wait(device.submit((plan,), ops), timeout_s=10)
        words = heap.array(np.uint32, (NUM_WORDS,), 2 * page_bytes)
        if not np.array_equal(words, np.arange(FIRST, FIRST + NUM_WORDS)):
            return False, f"pages of {page_bytes} bytes: the heap has {words[:4]}, not {FIRST}, .."
        plan.free()
        sparse.free()
        heap.free()
    pages = f"pages of {', '.join(map(str, page_sizes))} bytes"
    return True, f"{pages} by page table: {reason}" if reason else pages


def _check_model(kind: str, num_tokens: int) -> Iterator[Finding]:
    """The demo model's tokens on the cpu, and here without and with drafts."""
    try:
        wanted, finding = _answer("cpu", num_tokens)
        yield finding
        for width in (DRAFT_WIDTH,) if kind == "cpu" else (0, DRAFT_WIDTH):
            answer, finding = _answer(kind, num_tokens, width)
            yield finding
            yield compare(answer, wanted)
    except MtlqError as error:
        yield Finding("demo model", False, str(error))


def _answer(kind: str, num_tokens: int, draft_width: int = 0) -> tuple[Completion, Finding]:
    """What the demo model says, and how fast it was."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, logprobs=2)
    drafting: dict[str, Any] = (
        {"drafter": "demo", "draft_width": draft_width} if draft_width else {}
    )
    started = time.perf_counter()
    with LLM(device=kind, ctx=1024, max_slots=1, **drafting) as llm:
        opened = time.perf_counter() - started
        answer = llm.generate(PROMPT, params)
    what = f"demo model on {kind}" + (f", {draft_width} drafts a pass" if draft_width else "")
    detail = f"opened in {opened:.1f} s, {num_tokens / answer.decode_s:.1f} tokens/s"
    return answer, Finding(what, True, detail)


def compare(answer: Completion, wanted: Completion) -> Finding:
    """Whether the first difference, if any, is where two of the cpu's best logits are close."""
    what, total = "tokens as on the cpu", len(wanted.token_ids)
    pairs = zip(answer.token_ids, wanted.token_ids, strict=True)
    same = next((i for i, (left, right) in enumerate(pairs) if left != right), total)
    if same == total:
        return Finding(what, True, f"all {total}")
    assert wanted.logprobs is not None
    (_, best), (_, second) = wanted.logprobs[same][1]
    gap = best - second
    return Finding(what, gap < MAX_GAP, f"{same} of {total}, where two logits differ by {gap:.3f}")
