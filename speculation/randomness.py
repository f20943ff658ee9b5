"""Shared randomness: every draw is a pure function of what it decides, so both sides and every replay agree.

A draw is keyed by ``(seed, purpose, absolute position, index)``; the index is a token id or a draw's number
(docs/exactness.md). The fields go through a full 64-bit mixer one after the other. A sum of fields would let
two different keys meet in the same draw.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = int | np.integer[Any] | NDArray[np.integer[Any]]

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: spreads consecutive field values over all 64 bits before they are mixed in."""
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Of the splitmix64 finaliser (Steele et al., "Fast splittable pseudorandom number generators", 2014)."""
_BELOW_ONE = 1.0 - 2.0**-53
_SCALAR = (int, np.integer)
_BLOCK = 16_384
"""Words mixed at once: their temporaries stay in the cache."""


class Purpose(IntEnum):
    """What a draw decides. Two purposes never share a draw."""

    COUPLE = 1
    """The race noise of a token id (coupled mode); index: the token id."""
    DRAFT = 2
    """The edge's drafted token."""
    ACCEPT = 3
    """Whether a drafted token stands."""
    RESIDUAL = 4
    """The replacement drawn from a sparse residual."""
    PROPOSAL = 5
    """A token drawn from the target; index: the draw's number."""
    THIN = 6
    """Whether a proposal passes into the residual; index: the draw's number."""


def uniform(seed: Integers, purpose: Purpose, position: Integers, index: Integers = 0) -> NDArray[np.float64]:
    """Return the draws of the broadcast arguments, each in the open interval (0, 1).

    Integer scalars or arrays in (taken modulo 2^64), float64 of the broadcast shape out (0-d for scalars).
    With h the key's hash, a draw is ``U = ((h >> 11) + 1/2) * 2^-53`` as the nearest double, kept below 1
    where it would round up to it.
    """
    if isinstance(seed, _SCALAR) and isinstance(position, _SCALAR):
        state = _scalar_state(int(seed), int(purpose), int(position))
        if isinstance(index, _SCALAR):
            hashed = np.array([_mix_scalar(state ^ _spread(int(index)))], dtype=np.uint64)
        else:
            hashed = _mix(_spread_array(index) ^ np.uint64(state))
    else:
        states = _mix(_as_words(seed))
        states = _mix(states ^ np.uint64(_spread(int(purpose))))
        states = _mix(np.bitwise_xor(states, _spread_array(position), order="C"))
        hashed = _mix(np.bitwise_xor(states, _spread_array(index), order="C"))
    hashed >>= np.uint64(11)
    draws = hashed.astype(np.float64)
    draws += 0.5
    draws *= 2.0**-53
    np.minimum(draws, _BELOW_ONE, out=draws)
    shape = np.broadcast_shapes(np.shape(seed), np.shape(position), np.shape(index))
    return draws.reshape(shape)


# A key's hash is mix(mix(mix(mix(seed) ^ purpose) ^ position) ^ index), each field spread before it is mixed
# in. The scalar functions do what the array functions do: arrays are for the indexes, scalars cost less
# alone.


@lru_cache(maxsize=4096)
def _scalar_state(seed: int, purpose: int, position: int) -> int:
    state = _mix_scalar(seed & _MASK)
    state = _mix_scalar(state ^ _spread(purpose))
    return _mix_scalar(state ^ _spread(position))


def _spread(field: int) -> int:
    return (field * _ODD) & _MASK


def _mix_scalar(h: int) -> int:
    first, second = _MULTIPLIERS
    h = ((h ^ (h >> 30)) * first) & _MASK
    h = ((h ^ (h >> 27)) * second) & _MASK
    return h ^ (h >> 31)


def _as_words(field: Integers) -> NDArray[np.uint64]:
    """A fresh array of one dimension or more: NumPy warns of overflow in scalar products, not in arrays."""
    if isinstance(field, int):
        return np.array([field & _MASK], dtype=np.uint64)
    return np.array(field, dtype=np.uint64, ndmin=1, order="C")


def _spread_array(field: Integers) -> NDArray[np.uint64]:
    words = _as_words(field)
    words *= np.uint64(_ODD)
    return words


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix every word of ``h``, a C-contiguous array, in place."""
    first, second = _MULTIPLIERS
    assert h.flags.c_contiguous
    words = h.reshape(-1)
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        block ^= block >> np.uint64(30)
        block *= np.uint64(first)
        block ^= block >> np.uint64(27)
        block *= np.uint64(second)
        block ^= block >> np.uint64(31)
    return h
