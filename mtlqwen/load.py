"""From a file name to an engine that can step: device, file, runner, engine, and their end."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from .config import ModelConfig
from .device import Device
from .engine import Engine
from .errors import MtlqError
from .gguf import GGUF, open_gguf
from .runner import Runner

DEFAULT_CONTEXT = 65_536
BLOCK_TOKENS = 128


def demo_model_path() -> Path:
    """Where the model that ships with the package lies."""
    return Path(str(files("mtlqwen") / "data" / "demo-q8_0.gguf"))


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
) -> Engine:
    """An engine over the GGUF file `model`, not started; the options are those of `LLM`.

    `close_engine` ends it with everything below it.
    """
    gguf = open_gguf(model)
    try:
        max_context = _max_context(gguf, ctx)
        opened = Device.open(device, num_threads=threads)
        try:
            runner = Runner(
                opened,
                gguf,
                max_slots=max_slots,
                max_context=max_context,
                pass_tokens=pass_tokens,
                block_tokens=BLOCK_TOKENS,
            )
            return Engine(
                runner,
                kv_memory_bytes=kv_memory,
                prefix_memory_bytes=prefix_memory,
                prefix_cache_dir=prefix_cache_dir,
            )
        except BaseException:
            opened.close()
            raise
    except BaseException:
        gguf.close()
        raise


def close_engine(engine: Engine) -> None:
    """Stops the engine and closes its runner, device and file."""
    engine.close()
    runner = engine.runner
    runner.close()
    runner.device.close()
    runner.gguf.close()


def _max_context(gguf: GGUF, ctx: int | None) -> int:
    """Positions per slot: `ctx` rounded up to whole blocks, within what the model was made for."""
    limit = ModelConfig.from_gguf(gguf).max_position // BLOCK_TOKENS * BLOCK_TOKENS
    if ctx is None:
        return min(DEFAULT_CONTEXT, limit)
    if not 0 < ctx <= limit:
        raise MtlqError(f"ctx {ctx} is out of range: this model takes 1 to {limit} tokens")
    return -(-ctx // BLOCK_TOKENS) * BLOCK_TOKENS
