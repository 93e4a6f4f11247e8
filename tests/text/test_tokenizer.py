import threading
import unicodedata
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

import mtlqwen.tokenizer as tokenizer_module
from mtlqwen.errors import ModelError, RequestError
from mtlqwen.tokenizer import BYTE_OF_CHARACTER, PRE_SPLIT, Tokenizer

IM_END, THINK = "<|im_end|>", "<think>"
pieces_of_control = st.lists(
    st.sampled_from([IM_END, "<|im_", "end|>", "<|", "|>", "<", ">", THINK, "a", " ", "\n", "é"])
).map("".join)


def test_reference_prompts_have_the_reference_ids(tokenizer, reference_prompts):
    for text, ids in reference_prompts.values():
        assert tokenizer.encode(text, control=True) == ids
        assert tokenizer.decode(ids, show_control=True) == text


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    naps, ended = [], threading.Event()

    def nap():
        while not ended.wait(0.001):
            naps.append(None)

    thread = threading.Thread(target=nap)
    thread.start()
    tokenizer.encode("The fox runs over the hill. " * 20_000)
    num_naps = len(naps)
    ended.set()
    thread.join()
    assert num_naps > 20  # of some hundred; 5 or so if the interpreter is held


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("I'LL don't", ["I", "'LL", " don", "'t"]),
        ("a1234", ["a", "1", "2", "3", "4"]),
        ("हिन्दी भाषा", ["हिन्दी", " भाषा"]),  # combining marks belong to their word
        ("e\u0301a", ["e\u0301a"]),
        ("x  y", ["x", " ", " y"]),
        ("(x) -> {}\n\n", ["(x", ")", " ->", " {}\n\n"]),
        ("a \n \n  b", ["a", " \n \n", " ", " b"]),
        ("日本語!", ["日本語", "!"]),
        ("\u0301!", ["\u0301", "!"]),
        ("tail  ", ["tail", "  "]),
    ],
)
def test_the_pre_split_rule(text, pieces):
    split = pre_tokenizers.Split(Regex(PRE_SPLIT), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str(text)] == pieces


@given(text=pieces_of_control)
def test_text_never_becomes_a_control_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not tokenizer.control_ids.intersection(ids)
    assert tokenizer.decode(ids) == text


@given(text=pieces_of_control)
def test_control_tokens_are_parsed_on_demand(tokenizer, text):
    ids = tokenizer.encode(text, control=True)
    assert ids.count(tokenizer.control_tokens[IM_END]) == text.count(IM_END)
    assert ids.count(tokenizer.think_open) == text.count(THINK)
    assert tokenizer.decode(ids, show_control=True) == text
    assert tokenizer.decode(ids) == text.replace(IM_END, "")


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<")))
def test_encoding_loses_nothing_but_the_composition_of_characters(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@given(
    text=st.lists(
        st.sampled_from(
            [
                *"aZé漢か가1½ '.,。，!_-=\t\n\r\x0b\x85\u2028\u3000\u0301\u0338\u3099\u11a8sS",
                "'ll",
                THINK,
            ]
        ),
        max_size=20,
    ).map("".join),
    chunk=st.integers(1, 3),
)
@settings(max_examples=500)
def test_a_text_in_chunks_has_the_tokens_of_the_whole(tokenizer, text, chunk):
    with patch.object(tokenizer_module, "CHUNK", chunk):
        in_chunks = tokenizer.encode(text)
    assert in_chunks == tokenizer.encode(text)


@pytest.mark.parametrize("word", ["fox ", "7", "x\n", "漢字、", "<think>"])
def test_what_is_beyond_the_limit_is_not_tokenised(tokenizer, word):
    ids = tokenizer.encode(word * 1_000_000, limit=10)
    assert 10 < len(ids) < 250_000  # of a million or more


def test_a_text_in_which_no_word_ends_is_refused_unread(tokenizer):
    for character in "a !\n漢":
        with pytest.raises(RequestError, match="262144 characters on end"):
            tokenizer.encode(character * 3_000_000)
    assert tokenizer.encode("漢" * 100_000)


def test_decomposed_text_is_composed_first(tokenizer):
    assert tokenizer.encode("Cafe\u0301") == tokenizer.encode("Café")


def test_user_defined_tokens_are_parsed_always_and_shown(tokenizer):
    for control in (False, True):
        assert tokenizer.encode("<think>", control=control) == [tokenizer.think_open]
    assert tokenizer.decode([tokenizer.think_open, tokenizer.think_close]) == "<think></think>"


def test_an_unfinished_character_at_the_end_is_left_out(tokenizer):
    ids = tokenizer.encode("ok🦊")
    assert tokenizer.decode(ids[:-1]) == "ok"
    assert tokenizer.decode([*ids[:-1], *tokenizer.encode("x")]) == "ok\ufffdx"


def test_an_unpaired_surrogate_is_a_request_error(tokenizer):
    with pytest.raises(RequestError, match=r"U\+D83E at character 2"):
        tokenizer.encode("ab\ud83e")


def test_every_token_stands_for_its_bytes(tokenizer, demo_gguf):
    tokens = demo_gguf.metadata["tokenizer.ggml.tokens"]
    for token, text in enumerate(tokens):
        added = token in tokenizer.control_ids or text in tokenizer.user_defined_tokens
        expected = text.encode() if added else bytes(BYTE_OF_CHARACTER[c] for c in text)
        assert tokenizer.token_bytes(token) == expected
    assert tokenizer.token_bytes(len(tokens)) == b""
    assert tokenizer.token_bytes(-1) == b""


# ---- small vocabularies --------------------------------------------------------------------------


def small_metadata(**changes):
    tokens = [
        *BYTE_OF_CHARACTER,
        "ab",
        "abc",
        "<|im_end|>",
        "<|endoftext|>",
        "<b>",
        "<bb>",
        "[PAD]",
    ]
    metadata = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": tokens,
        "token_type": np.array([1] * 258 + [3, 3, 4, 4, 5], np.int32),
        "merges": ["a b", "ab c"],
        "eos_token_id": 258,
    }
    metadata = {**metadata, **changes}
    return {f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None}


def small(**changes):
    return Tokenizer.from_gguf(SimpleNamespace(path="x.gguf", metadata=small_metadata(**changes)))


def test_merges_apply_by_rank_and_padding_is_no_token():
    tokenizer = small()
    assert tokenizer.encode("abcab[PAD]")[:2] == [257, 256]
    assert tokenizer.num_tokens == 262
    assert tokenizer.token_bytes(262) == b""
    assert tokenizer.encode("<bb><b>") == [261, 260]
    assert tokenizer.think_open is None


def test_a_whole_word_in_the_vocabulary_still_needs_its_merges():
    assert small(merges=["b c"], tokens=swap("ab", "bc")).encode("abc") == [ord("a") - 33, 256]


def swap(old, new):
    return [new if token == old else token for token in small_metadata()["tokenizer.ggml.tokens"]]


def test_both_end_tokens_stop_whichever_the_file_names():
    assert small().stop_ids == {258, 259}
    assert small(eos_token_id=None).stop_ids == {258, 259}
    assert small(eos_token_id=5, eot_token_id=6).stop_ids == {5, 6, 258, 259}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "'llama'"),
        ({"pre": "qwen2"}, "'qwen2'"),
        ({"pre": None}, "None"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": np.arange(263)}, "tokens is no array of strings"),
        ({"tokens": swap("ab", "abc")}, "twice"),
        ({"tokens": swap("ab", "")}, r"tokens\[256\] is empty"),
        ({"tokens": swap("!", "xx")}, "lacks the byte 0x21"),
        ({"token_type": None}, "token_type"),
        ({"token_type": np.ones(5, np.int32)}, "token_type"),
        ({"token_type": np.ones(263, np.float32)}, "token_type"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a b", "q q"]}, "'q q'"),
        ({"merges": ["a b", "abc"]}, "merges"),
        ({"merges": ["a b", "zz c"]}, "merges"),
        ({"merges": ["a b", ""]}, "merges"),
        ({"eos_token_id": 263}, "eos_token_id is 263"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
    ],
)
def test_a_damaged_vocabulary_is_refused_by_name(changes, message):
    with pytest.raises(ModelError, match=rf"x\.gguf: .*{message}"):
        small(**changes)
