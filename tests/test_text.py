"""Text as it is committed: whole characters only, and all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.text import IncrementalText
from model_folder import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
REPLACEMENT = "\ufffd"


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


@given(st.text(max_size=30), st.lists(st.integers(1, 5), min_size=1))
def test_pieces_add_up_and_never_split_a_character(text: str, sizes: list[int]) -> None:
    ids = ids_of(text)
    incremental = IncrementalText(TOKENIZER)
    pieces, start = [], 0
    while start < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(incremental.push(ids[start : start + size]))
        start += size
    assert all(REPLACEMENT not in piece or REPLACEMENT in text for piece in pieces)
    assert "".join(pieces) + incremental.finish() == TOKENIZER.decode(ids)


@given(st.text(max_size=12), st.data())
def test_a_preview_is_what_pushing_would_give(text: str, data: st.DataObject) -> None:
    ids = ids_of(text)
    cut = data.draw(st.integers(0, len(ids)))
    incremental = IncrementalText(TOKENIZER)
    before = incremental.push(ids[:cut])
    preview = incremental.preview(ids[cut:])
    assert before + preview == TOKENIZER.decode(ids)
    assert incremental.push(ids[cut:]) + incremental.finish() == preview


def test_a_character_appears_with_its_last_byte() -> None:
    euro = ids_of("€")
    assert len(euro) == 3
    incremental = IncrementalText(TOKENIZER)
    assert [incremental.push([token]) for token in euro] == ["", "", "€"]


def test_a_text_that_ends_within_a_character_ends_in_a_replacement() -> None:
    incremental = IncrementalText(TOKENIZER)
    assert incremental.push([*ids_of("a"), *ids_of("€")[:2]]) == "a"
    rest = incremental.finish()
    assert set(rest) == {REPLACEMENT}
    assert "a" + rest == incremental.text


def test_special_tokens_are_not_text() -> None:
    incremental = IncrementalText(TOKENIZER)
    end = TOKENIZER.token_to_id("<end>")
    assert incremental.push([*ids_of("ok"), end]) + incremental.finish() == "ok"
