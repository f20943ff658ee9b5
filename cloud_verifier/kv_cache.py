"""The key/value cache of one sequence: rows appended in place, rolled back by moving the end."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

SPARE_ROWS = 256
"""Rows a buffer is allocated beyond what is needed at once."""


class InPlaceLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # Transformers' __init_subclass__
    """A layer whose keys and values are views of a buffer that doubles when it is full.

    Transformers' own dynamic layer concatenates: every step copies the whole context. Here a step copies its
    own rows only, and ``crop`` (inherited: it slices the views) frees them without touching the buffer.
    Sliding-window models use it too: every row is kept, so that any rollback is possible, and the model's
    mask applies the window.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._key_buffer: torch.Tensor | None = None
        self._value_buffer: torch.Tensor | None = None

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002 - the base class's signature
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[1, heads, n, head_dim]`` rows; returns all, ``[1, heads, length, head_dim]``."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = int(self.get_seq_length())
        end = start + key_states.shape[-2]
        self._key_buffer = with_room(self._key_buffer, start, end, key_states)
        self._value_buffer = with_room(self._value_buffer, start, end, value_states)
        self._key_buffer[..., start:end, :] = key_states
        self._value_buffer[..., start:end, :] = value_states
        self.keys = self._key_buffer[..., :end, :]
        self.values = self._value_buffer[..., :end, :]
        return self.keys, self.values


def with_room(buffer: torch.Tensor | None, used: int, needed: int, rows: torch.Tensor) -> torch.Tensor:
    """``buffer`` if it holds ``needed`` rows, else one twice as large with its first ``used`` rows.

    ``rows`` ``[1, heads, n, head_dim]`` gives the shape, dtype and device of a new buffer.
    """
    if buffer is not None and needed <= buffer.shape[-2]:
        return buffer
    capacity = needed + SPARE_ROWS if buffer is None else max(needed, 2 * buffer.shape[-2])
    grown = rows.new_empty((*rows.shape[:-2], capacity, rows.shape[-1]))
    if buffer is not None:
        grown[..., :used, :] = buffer[..., :used, :]
    return grown


def rollback_cache() -> Cache:
    """An empty cache that grows a layer whenever the model writes to a new one."""
    return Cache(layer_class_to_replicate=InPlaceLayer)
