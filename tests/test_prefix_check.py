"""The prefix check against CRC-16 computed bit by bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acespec.wire import PrefixCheck

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=30)


def crc16(data: bytes) -> int:
    """CRC-16 with polynomial 0x1021 and initial value 0xffff, most significant bit first."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def test_reference_gives_the_published_check_value() -> None:
    assert crc16(b"123456789") == 0x29B1  # CRC-16/IBM-3740 in the catalogue of parametrised CRC algorithms


@given(token_lists)
def test_equals_the_reference(tokens: list[int]) -> None:
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    assert PrefixCheck(tokens).value == crc16(data)


@given(token_lists, st.data())
def test_is_incremental(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    check = PrefixCheck()
    check.update(tokens[:cut])
    check.update(tokens[cut:])
    assert check.value == PrefixCheck(tokens).value


def test_leading_zero_ids_count() -> None:
    assert len({PrefixCheck([0] * count).value for count in range(8)}) == 8


@given(token_lists.filter(bool), st.data())
def test_any_one_changed_token_is_noticed(tokens: list[int], data: st.DataObject) -> None:
    # A change within 16 bits is a burst that CRC-16 always detects.
    index = data.draw(st.integers(0, len(tokens) - 1))
    changed = list(tokens)
    changed[index] ^= data.draw(st.integers(1, 2**16 - 1))
    assert PrefixCheck(changed).value != PrefixCheck(tokens).value
