import json

import pytest
from hf_directory import write_tokenizer
from tokenizers import normalizers

from mtlqwen.convert.tokenizer import tokenizer_metadata
from mtlqwen.errors import ModelError

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def metadata(tmp_path, num_rows=272):
    return tokenizer_metadata(tmp_path, num_rows)


def test_vocabulary_types_and_merges_are_those_of_the_tokenizer(tmp_path):
    write_tokenizer(tmp_path)
    found = metadata(tmp_path)
    tokens = found["tokenizer.ggml.tokens"]
    types = found["tokenizer.ggml.token_type"].tolist()
    assert len(tokens) == len(types) == 272
    assert tokens[256:258] == ["th", "the"]
    assert found["tokenizer.ggml.merges"] == ["t h", "th e"]
    added = dict(zip(tokens[258:263], types[258:263], strict=True))
    assert added == {
        "<|endoftext|>": 3,
        "<|im_end|>": 3,
        "<think>": 4,
        "</think>": 4,
        "<|fim_pad|>": 3,
    }
    assert set(types[:258]) == {1}
    assert (tokens[263], set(types[263:])) == ("[PAD263]", {5})
    assert found["tokenizer.ggml.eos_token_id"] == 259
    assert found["tokenizer.ggml.padding_token_id"] == 258
    assert "tokenizer.ggml.bos_token_id" not in found
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.ggml.pre"] == "qwen35"


def test_merges_stored_as_text_are_the_same(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"]["merges"] = ["t h", "th e"]
    path.write_text(json.dumps(contents))
    assert metadata(tmp_path)["tokenizer.ggml.merges"] == ["t h", "th e"]


def test_the_chat_template_of_its_own_file_wins(tmp_path):
    write_tokenizer(tmp_path)
    assert metadata(tmp_path)["tokenizer.chat_template"] == "from tokenizer_config"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert metadata(tmp_path)["tokenizer.chat_template"] == "from json"
    (tmp_path / "chat_template.jinja").write_text("from jinja: é\n", encoding="utf-8")
    assert metadata(tmp_path)["tokenizer.chat_template"] == "from jinja: é\n"


def test_of_named_templates_the_default_is_taken(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    templates = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    path.write_text(json.dumps({"chat_template": templates}))
    assert metadata(tmp_path)["tokenizer.chat_template"] == "D"


def test_another_splitting_rule_is_refused(tmp_path):
    write_tokenizer(tmp_path, split=QWEN2_SPLIT)
    with pytest.raises(ModelError, match="splits text by another rule"):
        metadata(tmp_path)


def test_a_missing_normalisation_is_refused(tmp_path):
    write_tokenizer(tmp_path, normalizer=normalizers.NFD)
    with pytest.raises(ModelError, match="NFC"):
        metadata(tmp_path)


def test_a_vocabulary_larger_than_the_table_is_refused(tmp_path):
    write_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="has id 261, but the embedding table has 261 rows"):
        metadata(tmp_path, 261)


def test_an_end_token_outside_the_vocabulary_is_refused(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|nothing|>"}')
    with pytest.raises(ModelError, match=r"eos_token '<\|nothing\|>' is not in"):
        metadata(tmp_path)


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        metadata(tmp_path)
