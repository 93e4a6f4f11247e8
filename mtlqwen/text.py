"""Text as it is generated: whole characters, thoughts apart from the answer, stop strings cut."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Kind = Literal["content", "reasoning"]

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


def decode_utf8(data: bytes) -> str:
    """`data` as text: U+FFFD for what is no UTF-8, nothing for an unfinished last character."""
    return _utf8_decoder("replace").decode(data)


class Delta(NamedTuple):
    """A stretch of new text: of the answer ("content") or of the thoughts ("reasoning")."""

    kind: Kind
    text: str


class StopMatcher:
    """Passes text on up to the first stop string, holding back what may be the beginning of one.

    The stop string that is complete first wins, so the result does not depend on how text arrives.
    """

    def __init__(self, stop: Sequence[str]):
        self._stop = stop
        self._held = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """The text that can be shown now. After `stopped` is set there is none."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        found = [(text.index(s) + len(s), -len(s), s) for s in self._stop if s in text]
        if found:
            end, _, self.stopped = min(found)
            shown, self._held = text[: end - len(self.stopped)], ""
        else:
            shown = text[: len(text) - self._num_held(text)]
            self._held = text[len(shown) :]
        return shown

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            tail = text[-length:]
            if any(s.startswith(tail) for s in self._stop):
                return length
        return 0


class TextStream:
    """Turns the tokens of one answer into text, piece by piece; any split gives the same text.

    Control tokens are hidden. With `split_reasoning`, text up to </think> is "reasoning" when the
    prompt opened the block (`starts_in_think`) or the answer begins with <think>; the tags and the
    newlines that lay them out are left out. Later tags are text, and without the split all are.
    Stop strings are looked for in the text as delivered, within the thoughts and within the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        starts_in_think: bool = False,
        split_reasoning: bool = True,
    ):
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = _utf8_decoder("replace")
        self._kind: Kind = "reasoning" if starts_in_think and split_reasoning else "content"
        self._matcher = StopMatcher(self._stop)
        self._may_open = split_reasoning  # no text came so far: <think> opens the block
        self._may_close = self._kind == "reasoning"
        self._at_start = self._may_close  # newlines are layout until some other text comes
        self._newlines = ""  # at the end of the thoughts so far: layout if </think> follows
        self._deltas: list[Delta] = []

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matcher.stopped

    def push(self, ids: Iterable[int]) -> list[Delta]:
        """The text that `ids` complete. After a stop string there is none."""
        for token in ids:
            if self.stopped is not None:
                break
            if token == self._tokenizer.think_open and self._may_open:
                self._begin("reasoning")
            elif token == self._tokenizer.think_close and self._may_close:
                self._end_thoughts()
            elif token not in self._tokenizer.control_ids:
                self._take(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return self._delivered()

    def finish(self) -> list[Delta]:
        """What was held back; a character that the end cut in two is left out."""
        if self.stopped is None:
            self._emit(self._newlines)
            self._newlines = ""
            self._show(self._matcher.flush())
        return self._delivered()

    def _begin(self, kind: Kind) -> None:
        self._decoder.reset()
        self._matcher = StopMatcher(self._stop)
        self._kind = kind
        self._at_start = True
        self._newlines = ""
        self._may_open = False
        self._may_close = kind == "reasoning"

    def _end_thoughts(self) -> None:
        self._take(self._decoder.decode(b"", final=True))
        if self.stopped is None:
            self._show(self._matcher.flush())
            self._begin("content")

    def _take(self, text: str) -> None:
        """Sets layout newlines apart and emits the rest."""
        if self._at_start:
            text = text.lstrip("\n")
        if not text:
            return
        self._at_start = False
        self._may_open = False
        if self._kind == "reasoning":
            text = self._newlines + text
            body = text.rstrip("\n")
            self._newlines = text[len(body) :]
            text = body
        self._emit(text)

    def _emit(self, text: str) -> None:
        self._show(self._matcher.push(text))

    def _show(self, text: str) -> None:
        if not text:
            return
        if self._deltas and self._deltas[-1].kind == self._kind:
            text = self._deltas.pop().text + text
        self._deltas.append(Delta(self._kind, text))

    def _delivered(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
