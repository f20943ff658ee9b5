"""Paths of tokens: what a model's row depends on, as a key and as tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

KEY_BYTES = 16


class TokenPath:
    """A prompt and tokens behind it; immutable, and longer ones share what they have in common.

    ``key`` names the tokens and where the prompt ends, the same in every process. Models are fed the prompt
    at once and what follows a token at a time (see ``RowSource``), so where the prompt ends is part of what a
    row is.
    """

    __slots__ = ("key", "length", "parent", "prompt", "token")

    def __init__(
        self, prompt: tuple[int, ...], parent: TokenPath | None, token: int, length: int, key: bytes
    ) -> None:
        """For ``of`` and ``then``."""
        self.prompt = prompt
        self.parent = parent
        """The path without the last token; None where the prompt ends."""
        self.token = token
        """The last token."""
        self.length = length
        self.key = key

    @classmethod
    def of(cls, prompt: Sequence[int], generated: Iterable[int] = ()) -> TokenPath:
        """The path of ``generated`` behind ``prompt``, which has a token at least."""
        tokens = tuple(prompt)
        digest = hashlib.blake2b(np.asarray(tokens, "<i8").tobytes(), digest_size=KEY_BYTES)
        path = cls(tokens, None, tokens[-1], len(tokens), digest.digest())
        for token in generated:
            path = path.then(token)
        return path

    def then(self, token: int) -> TokenPath:
        """The path with one more token."""
        data = self.key + int(token).to_bytes(8, "little")
        key = hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
        return TokenPath(self.prompt, self, int(token), self.length + 1, key)

    @property
    def generated(self) -> list[int]:
        """The tokens behind the prompt."""
        tokens: list[int] = []
        path: TokenPath | None = self
        while path is not None and path.parent is not None:
            tokens.append(path.token)
            path = path.parent
        return tokens[::-1]

    @property
    def tokens(self) -> list[int]:
        """All tokens."""
        return [*self.prompt, *self.generated]
