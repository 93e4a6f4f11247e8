"""Replays: fixed strings, token by token, cut at every place."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlqwen.text import Delta, StopMatcher, TextStream

EMOJI = "ďábelské 👩‍👩‍👧‍👦 🇨🇿 日本語 ﷽ e\u0301 \u200d end"


def splits(ids, count=24):
    """All at once, one by one, and some of the other ways to cut; all of them if they are few."""
    places = range(1, len(ids))
    if len(ids) <= 8:
        cuts = [c for n in range(len(ids)) for c in itertools.combinations(places, n)]
    else:
        choose = random.Random(len(ids))
        cuts = [(), tuple(places)]
        cuts += [sorted(choose.sample(places, choose.randrange(len(places)))) for _ in range(count)]
    for cut in cuts:
        edges = [0, *cut, len(ids)]
        yield [ids[i:j] for i, j in itertools.pairwise(edges)]


def deltas_of(tokenizer, pieces, **options):
    stream = TextStream(tokenizer, **options)
    deltas = [delta for piece in pieces for delta in stream.push(piece)] + stream.finish()
    assert all(delta.text for delta in deltas)
    return deltas, stream.stopped


def text_of(deltas, kind="content"):
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def replay(tokenizer, ids, **options):
    """Content, reasoning and stop string, which must be the same for every split."""
    results = set()
    for pieces in splits(ids):
        deltas, stopped = deltas_of(tokenizer, pieces, **options)
        results.add((text_of(deltas), text_of(deltas, "reasoning"), stopped))
    assert len(results) == 1, results
    return results.pop()


# ---- characters ----------------------------------------------------------------------------------


def test_no_half_character_is_ever_shown(tokenizer):
    ids = tokenizer.encode(EMOJI)
    content, _, _ = replay(tokenizer, ids)
    assert content == tokenizer.decode(ids)
    for pieces in splits(ids):
        deltas, _ = deltas_of(tokenizer, pieces)
        assert not any("\ufffd" in delta.text for delta in deltas)


def test_bytes_that_are_no_character_become_replacement_characters(tokenizer):
    byte_ids = {tokenizer.token_bytes(i): i for i in range(256)}
    for raw in (b"a\xff\xfeb", b"\xe2\x82x", b"\xf0\x9f\xff", b"\xed\xa0\x80.", b"\x80"):
        ids = [byte_ids[bytes([byte])] for byte in raw]
        assert replay(tokenizer, ids)[0] == raw.decode("utf-8", "replace")


def test_a_character_cut_off_by_the_end_is_left_out(tokenizer):
    ids = tokenizer.encode("fox 🦊")
    assert replay(tokenizer, ids)[0] == "fox 🦊"
    assert replay(tokenizer, ids[:-1])[0] == "fox "


def test_a_character_cut_off_by_the_end_of_thinking_is_replaced(tokenizer):
    ids = [*tokenizer.encode("fox 🦊")[:-1], *tokenizer.encode("</think>x")]
    assert replay(tokenizer, ids, starts_in_think=True)[:2] == ("x", "fox \ufffd")


def test_control_tokens_are_hidden_and_user_defined_ones_shown(tokenizer):
    ids = tokenizer.encode("a<|im_end|><tool_call>\nb</tool_call><|mask|>c", control=True)
    assert replay(tokenizer, ids)[0] == "a<tool_call>\nb</tool_call>c"


# ---- stop strings --------------------------------------------------------------------------------


def test_stop_strings_across_tokens_are_cut_exactly(tokenizer):
    full = "The quick brown fox 🦊 jumps, and the lazy dög sleeps.\n\nThe end."
    ids = tokenizer.encode(full)
    boundary = 0
    for token in ids[:-1]:
        boundary += len(tokenizer.token_bytes(token))
        around = full.encode()[max(boundary - 3, 0) : boundary + 4].decode(errors="ignore")
        for stop in ([around], [around, "zzz"], ["zzz", around]):
            content, _, stopped = replay(tokenizer, ids, stop=stop)
            assert content == full[: full.index(around)]
            assert stopped == around


@pytest.mark.parametrize("stop", [["end.."], ["The end.\n"], ["zzz"], ["\n\n\n", "d.x"]])
def test_what_never_becomes_a_stop_string_is_released(tokenizer, stop):
    ids = tokenizer.encode("The quick fox.\n\nThe end.")
    assert replay(tokenizer, ids, stop=stop) == ("The quick fox.\n\nThe end.", "", None)


def test_text_is_held_back_only_as_long_as_it_may_be_a_stop_string(tokenizer):
    stream = TextStream(tokenizer, stop=["fox and"])
    shown = [text_of(stream.push(tokenizer.encode(word))) for word in ("a", " fox", " a", "te")]
    assert shown == ["a", " ", "", "fox ate"]


def test_nothing_is_shown_after_a_stop_string(tokenizer):
    stream = TextStream(tokenizer, stop=["b"])
    assert stream.push(tokenizer.encode("abc")) == [Delta("content", "a")]
    assert (stream.push(tokenizer.encode("def")), stream.finish()) == ([], [])


def first_complete(text, stop):
    """By definition: the earliest end; of several with that end the longest."""
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stop))]
    if not ends:
        return text, None
    longest = max((s for s in stop if text[: ends[0]].endswith(s)), key=len)
    return text[: ends[0] - len(longest)], longest


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=8),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_stop_string_that_is_complete_first_wins(pieces, stop):
    matcher = StopMatcher(stop)
    shown = "".join(map(matcher.push, pieces))
    expected, stopped = first_complete("".join(pieces), stop)
    assert matcher.stopped == stopped
    assert shown + matcher.flush() == expected
    assert expected.startswith(shown)


# ---- reasoning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts_in_think", "output", "content", "reasoning"),
    [
        (True, "why\n</think>\n\nso", "so", "why"),
        (True, "why\n\nhow\n</think>\n\nso\n", "so\n", "why\n\nhow"),
        (True, "\n</think>\n\nso", "so", ""),
        (True, "</think>so", "so", ""),
        (True, "still thinking\n", "", "still thinking\n"),
        (True, "<think>\nwhy</think>so", "so", "why"),
        (True, "a <think> b</think>c", "c", "a <think> b"),
        (True, "a</think>\n\nb</think>c<think>d", "b</think>c<think>d", "a"),
        (True, "a</think><tool_call>\n</tool_call>", "<tool_call>\n</tool_call>", "a"),
        (True, "a\n</think>\n\n", "", "a"),
        (False, "<think>\nwhy\n</think>\n\nso", "so", "why"),
        (False, "<think>\nwhy", "", "why"),
        (False, "so", "so", ""),
        (False, "\n so", "\n so", ""),
        (False, "no <think>a</think>", "no <think>a</think>", ""),
        (False, "a</think>b", "a</think>b", ""),
    ],
)
def test_thoughts_and_answer_are_told_apart(tokenizer, starts_in_think, output, content, reasoning):
    ids = tokenizer.encode(output)
    result = replay(tokenizer, ids, starts_in_think=starts_in_think)
    assert result == (content, reasoning, None)


def test_without_the_split_everything_is_content(tokenizer):
    ids = tokenizer.encode("why\n</think>\n\nso<think>")
    result = replay(tokenizer, ids, starts_in_think=True, split_reasoning=False)
    assert result == ("why\n</think>\n\nso<think>", "", None)


def test_the_tag_spelled_in_other_tokens_is_text(tokenizer):
    ids = [i for piece in ("</", "think", "> a") for i in tokenizer.encode(piece)]
    assert replay(tokenizer, ids, starts_in_think=True)[:2] == ("", "</think> a")


def test_stop_strings_hold_in_thoughts_and_answer_but_not_across(tokenizer):
    ids = tokenizer.encode("one two\n</think>\n\nthree four")
    options = {"starts_in_think": True}
    assert replay(tokenizer, ids, stop=["two"], **options) == ("", "one ", "two")
    assert replay(tokenizer, ids, stop=["four"], **options) == ("three ", "one two", "four")
    assert replay(tokenizer, ids, stop=["two\n\nthree"], **options) == (
        "three four",
        "one two",
        None,
    )
    # The layout around the tag is no text.
    assert replay(tokenizer, ids, stop=["\n"], **options) == ("three four", "one two", None)


def test_text_waiting_for_a_stop_string_belongs_to_the_thoughts(tokenizer):
    ids = tokenizer.encode("wait</think>ing")
    assert replay(tokenizer, ids, stop=["waiting"], starts_in_think=True) == ("ing", "wait", None)
