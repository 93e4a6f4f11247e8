"""The tokenizer of a GGUF file: byte-level BPE with the qwen35 pre-split rule, run by `tokenizers`.

Tokens outside the BPE vocabulary are split out of a text before anything else: user-defined ones
(<think>, <tool_call>) always, as the model was trained; control ones (<|im_end|>) only on demand.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairEncoder

from .errors import ModelError, RequestError
from .text import decode_utf8

if TYPE_CHECKING:
    from .gguf import GGUF

# Leftmost match, first alternative that fits. \p{M} keeps combining marks with their word.
PRE_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # values of tokenizer.ggml.token_type
END_OF_TEXT = ("<|im_end|>", "<|endoftext|>")

# Where a text can be cut so that its parts have the tokens of the whole: a piece of PRE_SPLIT ends
# there, whatever follows, and NFC composes nothing across.
CUT = re.compile(
    r"(?<=[0-9])|(?<=\S)(?= )|(?<=[\r\n])(?=\S)"
    r"|(?<=[A-Za-zぁ-ゖァ-ヺ一-龥가-힣])(?=[\x00-@\[-`{-\x7f、。，：；！？])"
)
CHUNK = 1 << 16  # characters, or a little more: a token takes some 400 bytes until it is an id
MAX_STRETCH = 1 << 18  # characters without a place to cut: no text that means something


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte: itself where printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(hidden)
    }


BYTE_OF_CHARACTER = _byte_alphabet()


class Tokenizer:
    """Text to token ids and back.

    `control_tokens` and `user_defined_tokens` map text to id; `stop_ids` end an answer;
    `num_tokens` is one more than the largest id in use.
    """

    def __init__(
        self,
        bpe: BytePairEncoder,
        control_tokens: dict[str, int],
        user_defined_tokens: dict[str, int],
        stop_ids: frozenset[int],
        num_tokens: int,
    ):
        self.control_tokens = control_tokens
        self.user_defined_tokens = user_defined_tokens
        self.stop_ids = stop_ids
        self.num_tokens = num_tokens
        self.control_ids = frozenset(control_tokens.values())
        self.think_open = user_defined_tokens.get("<think>")
        self.think_close = user_defined_tokens.get("</think>")
        self._bpe = bpe
        self._added = control_tokens | user_defined_tokens
        self._added_bytes = {token: text.encode() for text, token in self._added.items()}
        self._any_added = added_token_splitter(self._added)
        self._only_user_defined = added_token_splitter(user_defined_tokens)

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Tokenizer:
        """The tokenizer that the metadata of `gguf` describes; or ModelError."""
        try:
            return _build(gguf.metadata)
        except ModelError as error:
            raise ModelError(f"{gguf.path}: {error}") from None

    def encode(self, text: str, *, control: bool = False, limit: int | None = None) -> list[int]:
        """The token ids of `text`; without `control`, none of them is a control token. Soon after
        `limit` ids it ends: then they are not all.

        Raises RequestError for text with an unpaired surrogate, or without anything like words.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds an unpaired surrogate, U+{ord(text[error.start]):04X} at character"
                f" {error.start}; it is no Unicode text"
            ) from None
        splitter = self._any_added if control else self._only_user_defined
        ids: list[int] = []
        for chunk, is_added in _chunks(text, splitter):
            if limit is not None and len(ids) > limit:
                break
            if is_added:
                ids.append(self._added[chunk])
            else:
                # `encode` would hold the interpreter, and with it the engine's thread.
                ids += self._bpe.encode_batch_fast([chunk], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Iterable[int], *, show_control: bool = False) -> str:
        """The text of `ids`, without an unfinished character at the end, as a TextStream has it."""
        hidden = frozenset() if show_control else self.control_ids
        return decode_utf8(b"".join(self.token_bytes(i) for i in ids if i not in hidden))

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for, perhaps a part of a character; b"" for padding."""
        added = self._added_bytes.get(token)
        if added is not None:
            return added
        characters = self._bpe.id_to_token(token) if 0 <= token < self.num_tokens else None
        if characters is None:
            return b""
        try:
            return bytes(map(BYTE_OF_CHARACTER.__getitem__, characters))
        except KeyError:  # outside the alphabet: stored as plain text
            return characters.encode()


def added_token_splitter(added: Iterable[str]) -> re.Pattern[str]:
    """Splits at the longest added token; `split` gives text and token in turn, text first."""
    longest_first = sorted(added, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def _chunks(text: str, added: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """The added tokens of `text`, and in chunks what lies between; whether it is an added token."""
    start = 0
    for match in chain(added.finditer(text), (None,)):
        end = len(text) if match is None else match.start()
        while start < end:
            most = start + CHUNK + MAX_STRETCH
            cut = CUT.search(text, start + CHUNK, min(end, most))
            if cut is None and end > most:
                raise RequestError(
                    f"the text has more than {MAX_STRETCH} characters on end in which no word,"
                    " number or line ends; break it up",
                    param="prompt",
                )
            stop = end if cut is None else cut.start()
            yield text[start:stop], False
            start = stop
        if match is not None:
            yield match[0], True
            start = match.end()


def _build(metadata: dict[str, Any]) -> Tokenizer:
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or rule != "qwen35":
        raise ModelError(
            f"the tokenizer is {kind!r} with the pre-split rule {rule!r}; a Qwen 3.5 file has"
            " 'gpt2' with 'qwen35': convert the model again"
        )
    tokens = list(_strings(metadata, "tokens"))
    types = np.asarray(metadata.get("tokenizer.ggml.token_type", ()))
    if types.ndim != 1 or len(types) != len(tokens) or not np.issubdtype(types.dtype, np.integer):
        raise ModelError(
            f"tokenizer.ggml.token_type is {types.dtype}{list(types.shape)}, not one integer for"
            f" each of the {len(tokens)} tokens"
        )
    added = {
        kind: {tokens[i]: i for i in np.flatnonzero(types == kind).tolist()}
        for kind in (CONTROL, USER_DEFINED)
    }
    is_base = ~np.isin(types, (CONTROL, USER_DEFINED, UNUSED))
    vocab = {tokens[i]: i for i in np.flatnonzero(is_base).tolist()}
    sizes = [len(vocab), len(added[CONTROL]), len(added[USER_DEFINED])]
    if sum(sizes) != np.count_nonzero(types != UNUSED):
        raise ModelError("tokenizer.ggml.tokens has the same token twice")
    return Tokenizer(
        _byte_pair_encoder(vocab, _strings(metadata, "merges")),
        added[CONTROL],
        added[USER_DEFINED],
        _stop_ids(metadata, added[CONTROL], len(tokens)),
        int(np.flatnonzero(types != UNUSED).max(initial=-1)) + 1,
    )


def _strings(metadata: dict[str, Any], name: str) -> Sequence[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, Sequence) or isinstance(value, str):
        state = "missing" if value is None else "no array of strings"
        raise ModelError(f"tokenizer.ggml.{name} is {state}")
    return value


def _byte_pair_encoder(vocab: dict[str, int], merges: Sequence[str]) -> BytePairEncoder:
    missing = [byte for character, byte in BYTE_OF_CHARACTER.items() if character not in vocab]
    if missing or "" in vocab:
        raise ModelError(
            f"tokenizer.ggml.tokens lacks the byte 0x{missing[0]:02X}, which text needs"
            if missing
            else f"tokenizer.ggml.tokens[{vocab['']}] is empty"
        )
    collects = gc.isenabled()
    gc.disable()  # 247,587 living tuples would be walked again and again: a tenth of the time
    try:
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        # `tokenizers` panics where two tokens make none; it reports everything else.
        if not all(map(vocab.__contains__, map("".join, pairs))):
            bad = next(pair for pair in pairs if "".join(pair) not in vocab)
            raise ModelError(f"tokenizer.ggml.merges has {' '.join(bad)!r}, which makes no token")
        encoder = BytePairEncoder(models.BPE(vocab=vocab, merges=pairs))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"tokenizer.ggml.merges: {error}") from error
    finally:
        if collects:
            gc.enable()
    encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return encoder


def _stop_ids(
    metadata: dict[str, Any], control_tokens: dict[str, int], num_entries: int
) -> frozenset[int]:
    """What ends an answer: the file's end ids, and both end tokens whichever the file names."""
    ids = {control_tokens[text] for text in END_OF_TEXT if text in control_tokens}
    for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"):
        if key in metadata:
            token = metadata[key]
            if not isinstance(token, int) or not 0 <= token < num_entries:
                raise ModelError(f"{key} is {token!r}, not an id below {num_entries}")
            ids.add(token)
    return frozenset(ids)
