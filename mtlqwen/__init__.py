"""Inference for Qwen 3.5 models in GGUF files.

from mtlqwen import LLM, SamplingParams
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm import LLM
    from .sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Loads NumPy and the library only when they are used: `mtlqwen --help` answers at once."""
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "SamplingParams":
        from .sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
