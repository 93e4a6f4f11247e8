"""From a file name to an engine that can step: device, file, runner, engine, and their end."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

from .arguments import an_integer, is_integer, is_path, misfit
from .config import ModelConfig
from .device import Device
from .engine import Engine
from .errors import MtlqError
from .gguf import GGUF, open_gguf
from .runner import Runner
from .speculation import MAX_DRAFTS, BlockDrafts, PromptLookup, Proposer

DEFAULT_CONTEXT = 65_536
BLOCK_TOKENS = 128
MAX_PASS_TOKENS = 65_536
MAX_THREADS = 1024  # of the cpu device


def demo_model_path() -> Path:
    """Where the model that ships with the package lies."""
    return Path(str(files("mtlqwen") / "data" / "demo-q8_0.gguf"))


def demo_drafter_path() -> Path:
    """Where the drafter of the demo model lies."""
    return demo_model_path().with_name("demo-dflash-q8_0.gguf")


def open_engine(
    model: str | Path,
    *,
    device: str = "cpu",
    threads: int = 0,
    ctx: int | None = None,
    max_slots: int = 8,
    pass_tokens: int = 128,
    kv_memory: int | None = None,
    prefix_memory: int | None = None,
    prefix_cache_dir: str | Path | None = None,
    drafter: str | Path | None = None,
    draft: str | None = None,
    draft_width: int | None = None,
) -> Engine:
    """An engine over the GGUF file `model`, not started; the options are those of `LLM`.

    `close_engine` ends it with everything below it.
    """
    _check_files(model=model, drafter=drafter, prefix_cache_dir=prefix_cache_dir)
    if not isinstance(device, str):
        raise MtlqError(misfit("device", device, "the name of one, 'cpu' or 'metal'"))
    _check_integer("threads", threads, 0, MAX_THREADS)
    _check_integer("pass_tokens", pass_tokens, 1, MAX_PASS_TOKENS)
    _check_integer("max_slots", max_slots, 1)
    draft = _checked_draft(drafter, draft, draft_width)
    if max_slots > pass_tokens:
        raise MtlqError(
            f"{max_slots} slots do not fit passes of {pass_tokens} tokens, of which each takes at "
            f"least one; use 1 to {pass_tokens} slots or raise pass_tokens"
        )
    with ExitStack() as undo:
        gguf = open_gguf(model)
        undo.callback(gguf.close)
        drafter_gguf: GGUF | None = None
        if drafter is not None:
            drafter_gguf = open_gguf(demo_drafter_path() if drafter == "demo" else drafter)
            undo.callback(drafter_gguf.close)
        max_context = _max_context(gguf, ctx)
        opened = Device.open(device, num_threads=threads)
        undo.callback(opened.close)
        runner = Runner(
            opened,
            gguf,
            drafter_gguf,
            max_slots=max_slots,
            max_context=max_context,
            pass_tokens=pass_tokens,
            block_tokens=BLOCK_TOKENS,
            max_draft_rows=1 + MAX_DRAFTS if draft is not None else 0,
        )
        engine = Engine(
            runner,
            kv_memory_bytes=kv_memory,
            prefix_memory_bytes=prefix_memory,
            prefix_cache_dir=prefix_cache_dir,
            drafts=_proposer(draft, runner),
            draft_width=draft_width,
        )
        undo.pop_all()
    return engine


def close_engine(engine: Engine) -> None:
    """Stops the engine and closes its runner, device and file."""
    engine.close()
    runner = engine.runner
    runner.close()
    runner.device.close()
    runner.gguf.close()
    if runner.drafter_gguf is not None:
        runner.drafter_gguf.close()


def _check_files(**paths: str | Path | None) -> None:
    for name, path in paths.items():
        if path is not None and not is_path(path):
            raise MtlqError(misfit(name, path, "a path"))


def _check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    if not is_integer(value, low, high):
        raise MtlqError(misfit(name, value, an_integer(low, high)))


def _checked_draft(
    drafter: str | Path | None, draft: str | None, draft_width: int | None
) -> str | None:
    """Who drafts: "dflash", "ngram" or None. MtlqError for options that would have no effect."""
    if draft not in (None, "dflash", "ngram"):
        raise MtlqError(f"draft {draft!r} is unknown; choose 'dflash' or 'ngram'")
    if draft == "ngram" and drafter is not None:
        raise MtlqError(
            f"drafter {drafter} has no effect with draft='ngram'; leave one of them out"
        )
    if draft == "dflash" and drafter is None:
        raise MtlqError("draft='dflash' needs a drafter file; draft='ngram' works without one")
    if drafter is not None:
        draft = "dflash"
    if draft_width is not None and draft is None:
        raise MtlqError("draft_width has no effect without a drafter or draft='ngram'")
    return draft


def _proposer(draft: str | None, runner: Runner) -> Proposer | None:
    if runner.drafter is not None:
        return BlockDrafts(runner.drafter.mask_id, runner.drafter.block_size)
    return PromptLookup() if draft == "ngram" else None


def _max_context(gguf: GGUF, ctx: int | None) -> int:
    """Positions per slot: `ctx` rounded up to whole blocks, within what the model was made for."""
    limit = ModelConfig.from_gguf(gguf).max_position // BLOCK_TOKENS * BLOCK_TOKENS
    if ctx is None:
        return min(DEFAULT_CONTEXT, limit)
    if not is_integer(ctx, 1, limit):
        raise MtlqError(misfit("ctx", ctx, f"{an_integer(1, limit)}, the limit of this model"))
    return -(-ctx // BLOCK_TOKENS) * BLOCK_TOKENS
