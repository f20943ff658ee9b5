"""What a step feeds a graph besides its rows: tokens, positions, which logits are wanted, masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.additive_mask import write_additive_mask
from acespec.edge_runtime.ort_interface import FLOAT_TYPES
from acespec.edge_runtime.ort_rows import MaskColumns
from acespec.models.manifest import MASKED, GraphVariant


class StepInputs:
    """Memory for the inputs of a step, at one place for all steps."""

    def __init__(self, variant: GraphVariant, widest: int, max_logits: int, max_rows: int) -> None:
        """A step has at most ``widest`` tokens, and logits of one or of up to ``max_logits`` of them."""
        self._tokens = np.zeros((1, widest), np.int64)
        self._positions = np.zeros((1, widest), np.int64)
        self._every_row = np.arange(max_logits)
        self._last_row = np.zeros(1, np.int64)
        types = {spec.name: spec.dtype for spec in variant.inputs}
        most = widest * (1 + max_rows + widest)
        self._masks: list[tuple[str, int | None, NDArray[Any]]] = [
            (mask.name, mask.window, np.zeros(most, FLOAT_TYPES[types[mask.name]])) for mask in variant.masks
        ]
        self._has_windows = any(mask.window is not None for mask in variant.masks)

    def bind(self, binding: ort.IOBinding, width: int, num_logits: int) -> None:
        """Bind all but the masks for steps ``width`` wide that want one token's logits or the first few's."""
        wanted = self._last_row if num_logits == 1 else self._every_row[:num_logits]
        for name, values in (("input_ids", self._tokens), ("position_ids", self._positions)):
            binding.bind_input(name, "cpu", 0, np.int64, (1, width), values.ctypes.data)
        binding.bind_input("logit_rows", "cpu", 0, np.int64, wanted.shape, wanted.ctypes.data)

    def write(self, tokens: NDArray[np.int64], positions: NDArray[np.int64], width: int) -> None:
        """Write ``tokens`` and ``positions`` ``[n]``, and zeros up to ``width``."""
        count = len(tokens)
        for target, values in ((self._tokens, tokens), (self._positions, positions)):
            target[0, :count] = values
            target[0, count:width] = 0
        self._last_row[0] = count - 1

    def bind_masks(
        self,
        binding: ort.IOBinding,
        columns: MaskColumns,
        width: int,
        allowed: NDArray[np.bool_],
        past_positions: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> None:
        """Write and bind the masks, one for each kind of layer.

        ``allowed`` ``[n, past + n]`` says which rows each token may attend to, ``past_positions`` ``[past]``
        and ``positions`` ``[n]`` at which position each stands.
        """
        if self._has_windows:
            positions = np.concatenate([past_positions, positions])  # others do not look at them
        for name, window, memory in self._masks:
            additive = memory[: width * columns.total].reshape(width, columns.total)
            if columns.past:
                additive[:, : columns.past] = MASKED
            target, new = additive[:, columns.past :], columns.new - columns.past
            write_additive_mask(target, allowed, positions, new, window)
            binding.bind_cpu_input(name, additive.reshape(1, 1, width, columns.total))
