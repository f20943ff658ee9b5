"""Vocabulary hash and size, the tokenizer file, end tokens."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from acespec.errors import AcespecError
from acespec.models import end_token_ids, load_tokenizer, vocabulary_hash, vocabulary_size
from model_folder import tiny_tokenizer, write_model_folder


def saved(path: Path, *extra_tokens: str) -> Path:
    tiny_tokenizer(extra_tokens).save(str(path))
    return path


def test_hash_is_that_of_the_documented_layout(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokenizer.json", "<end>", "<ü>")
    content = json.loads(path.read_text())
    by_id = {token_id: token for token, token_id in content["model"]["vocab"].items()}
    by_id |= {token["id"]: token["content"] for token in content["added_tokens"]}
    layout = b""
    for token_id in range(258):
        token = by_id[token_id].encode()
        layout += token_id.to_bytes(4, "little") + len(token).to_bytes(4, "little") + token
    assert vocabulary_hash(path) == hashlib.sha256(layout).hexdigest()


def test_hash_tells_vocabularies_apart(tmp_path: Path) -> None:
    hashes = {
        vocabulary_hash(saved(tmp_path / f"{index}.json", *tokens))
        for index, tokens in enumerate([(), ("<a>",), ("<b>",), ("<a>", "<b>"), ("<b>", "<a>")])
    }
    assert len(hashes) == 5


def test_hash_ignores_what_is_not_vocabulary(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokenizer.json", "<end>")
    before = vocabulary_hash(path)
    content = json.loads(path.read_text())
    content["pre_tokenizer"] = None
    content["truncation"] = {
        "max_length": 5,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    path.write_text(json.dumps(content, indent=4))
    assert vocabulary_hash(path) == before


def test_size_is_the_largest_id_plus_one_even_with_holes(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokenizer.json")
    assert vocabulary_size(load_tokenizer(path)) == 256
    assert vocabulary_size(load_tokenizer(saved(tmp_path / "added.json", "<end>"))) == 257
    content = json.loads(path.read_text())
    content["model"]["vocab"]["Z"] = 300
    path.write_text(json.dumps(content))
    holed = load_tokenizer(path)
    assert holed.get_vocab_size() == 256
    assert vocabulary_size(holed) == 301


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not json", b"\xff\xfe", b'{"model": 3}'])
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AcespecError) as caught:
        vocabulary_hash(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, 2, (2,)),
        ({}, 2, (2,)),
        ({"eos_token_id": [7, 3, 7]}, 2, (3, 7)),
        ({"eos_token_id": 0}, 2, (0,)),
        (None, None, ()),
    ],
)
def test_end_tokens_prefer_the_generation_config(
    tmp_path: Path, generation: dict[str, object] | None, config: int | None, expected: tuple[int, ...]
) -> None:
    folder = write_model_folder(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert end_token_ids(folder) == expected


def test_a_bad_end_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": "<end>"}')
    with pytest.raises(AcespecError, match=r"config\.json has eos_token_id '<end>'"):
        end_token_ids(tmp_path)
