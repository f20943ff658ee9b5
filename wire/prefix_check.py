"""A 16-bit check of the committed tokens, so that edge and cloud notice a disagreement before verifying."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence


class PrefixCheck:
    """CRC-16 (polynomial 0x1021, initial value 0xffff) over token ids as 4 little-endian bytes, incremental.

    Starting from 0xffff and not from 0 makes leading zero ids count.
    """

    __slots__ = ("_crc",)

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._crc = 0xFFFF
        self.update(tokens)

    def update(self, tokens: Sequence[int]) -> None:
        """Append committed ``tokens``."""
        self._crc = binascii.crc_hqx(struct.pack(f"<{len(tokens)}I", *tokens), self._crc)

    @property
    def value(self) -> int:
        """The check of all tokens so far, 0..65535."""
        return self._crc
