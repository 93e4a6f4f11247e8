"""The tokenizer of a Hugging Face directory as GGUF metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from ..errors import ModelError
from .safetensors import read_json

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# GGUF stores the name of a rule ("qwen35"), so a tokenizer that splits otherwise cannot be written.
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PROBE = (
    "It's WE'LL you'D 'tis  two  spaces\tand\ttabs \n\n  next\r\nline 1234 5½ ٣٤ a1b2 --> (x_y)!\n"
    "\n e\u0301te\u0301 \u0915\u094d\u0937\u093f \u0301!\u0301 naïve 你好,世界。 👩‍💻🇫🇷 \u3000end  "
)


def tokenizer_metadata(directory: Path, num_rows: int) -> dict[str, Any]:
    """Keys `tokenizer.*`; the vocabulary is filled with unused tokens up to `num_rows`.

    Raises ModelError if it is not the byte-level BPE of Qwen 3.5.
    """
    path = directory / "tokenizer.json"
    contents = read_json(path)
    _check_rules(path)
    model = contents["model"]
    if model["type"] != "BPE":
        raise ModelError(f"{path} is a {model['type']} tokenizer; every Qwen 3.5 model has BPE")
    tokens, types = _vocabulary(path, model["vocab"], contents.get("added_tokens") or [], num_rows)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [
            pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]
        ],
    }
    settings_path = directory / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.exists() else {}
    ids = {text: i for i, text in enumerate(tokens)}
    for key, setting in (("eos", "eos_token"), ("padding", "pad_token"), ("bos", "bos_token")):
        text = settings.get(setting)
        text = text["content"] if isinstance(text, dict) else text
        if text is not None:
            if text not in ids:
                raise ModelError(f"{settings_path}: {setting} {text!r} is not in the vocabulary")
            metadata[f"tokenizer.ggml.{key}_token_id"] = ids[text]
    metadata["tokenizer.ggml.add_bos_token"] = bool(settings.get("add_bos_token", False))
    template = _chat_template(directory, settings)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def _vocabulary(
    path: Path, vocab: dict[str, int], added: list[dict[str, Any]], num_rows: int
) -> tuple[list[str], np.ndarray]:
    """Text and type of each id below `num_rows`."""
    tokens = [f"[PAD{i}]" for i in range(num_rows)]
    types = np.full(num_rows, UNUSED, np.int32)
    for text, token in [*vocab.items(), *((entry["content"], entry["id"]) for entry in added)]:
        if not 0 <= token < num_rows:
            raise ModelError(
                f"{path}: token {text!r} has id {token}, but the embedding table has"
                f" {num_rows} rows"
            )
        tokens[token], types[token] = text, NORMAL
    for entry in added:
        text = entry["content"]
        control = entry["special"] or (text.startswith("<|") and text.endswith("|>"))
        types[entry["id"]] = CONTROL if control else USER_DEFINED
    return tokens, types


def _check_rules(path: Path) -> None:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} cannot be read: {error}") from error
    expected: PreTokenizer = PreTokenizers(
        [
            Split(Regex(QWEN35_SPLIT), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    found = tokenizer.pre_tokenizer
    if found is None or found.pre_tokenize_str(_PROBE) != expected.pre_tokenize_str(_PROBE):
        raise ModelError(
            f"{path} splits text by another rule than Qwen 3.5 (GGUF name 'qwen35');"
            " use the tokenizer.json of the original model"
        )
    normalizer = tokenizer.normalizer
    if normalizer is None or normalizer.normalize_str("e\u0301") != "\u00e9":
        raise ModelError(f"{path} does not normalise text to NFC, as every Qwen 3.5 tokenizer does")


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    """From chat_template.jinja, chat_template.json or tokenizer_config.json, in this order."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    path = directory / "chat_template.json"
    template = (read_json(path) if path.exists() else settings).get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template
