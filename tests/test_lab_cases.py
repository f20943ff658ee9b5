"""Data sets are read line by line, and a wrong line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from acespec.bench.lab.cases import PromptCase, load_cases
from acespec.errors import AcespecError


def encode(text: str) -> list[int]:
    return list(text.encode())


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_prompts_are_encoded_in_order_and_named_after_file_and_id(tmp_path: Path) -> None:
    path = write(
        tmp_path / "sums.jsonl", '{"id": "a/1", "prompt": "1+1", "answer": 2}', "", '{"prompt": "é"}'
    )
    assert load_cases(path, encode) == [
        PromptCase("sums", "a/1", (49, 43, 49)),
        PromptCase("sums", "3", (195, 169)),
    ]
    assert len(load_cases(path, encode, limit=1)) == 1


@pytest.mark.parametrize(
    ("line", "cause"),
    [("{", "line 2 is not JSON"), ("[]", "line 2 has no prompt"), ('{"prompt": ""}', "line 2 has no prompt")],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, cause: str) -> None:
    path = write(tmp_path / "sums.jsonl", '{"prompt": "1"}', line)
    with pytest.raises(AcespecError, match=cause):
        load_cases(path, encode)
    assert len(load_cases(path, encode, limit=1)) == 1, "what is not read is not judged"


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match="give a file of JSON lines"):
        load_cases(tmp_path / "none.jsonl", encode)
    with pytest.raises(AcespecError, match="has no prompt"):
        load_cases(write(tmp_path / "empty.jsonl"), encode)
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(AcespecError, match="cannot read"):
        load_cases(tmp_path / "bytes.jsonl", encode)
