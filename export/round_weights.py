"""A decoder made into what its integers stand for: smoothed, then quantised. For the export and its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from acespec.export.counted import ignore_count
from acespec.export.quantize import quantize_decoder
from acespec.export.quantized_matrix import QuantizedMatrix
from acespec.export.smooth import smooth_decoder
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import Quantization


def round_weights(
    decoder: ExportableDecoder,
    quantization: Quantization,
    calibration: Sequence[int],
    graph: str,
    on_matrix: Callable[[int, int], object] = ignore_count,
) -> dict[str, QuantizedMatrix]:
    """Smooth the decoder on ``calibration`` tokens, quantise it, and return its matrices by name.

    ``graph`` is the form they are for. The decoder's matrices are `MatrixProduct` of float32 that it owns.
    ``on_matrix`` is told of the progress, as `quantize_decoder` does it.
    """
    tokens = torch.tensor(calibration[: decoder.context])
    smooth_decoder(decoder, tokens, quantization)
    return quantize_decoder(decoder, quantization, read_by_tensorrt(quantization, graph), on_matrix)


def read_by_tensorrt(quantization: Quantization, graph: str) -> bool:
    """Whether TensorRT is to read the weights: outside ONNX Runtime's graph, if they have no zero points."""
    return graph != "ort" and quantization.symmetric
