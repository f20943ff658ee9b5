"""Which quantised weights TensorRT reads. Free of torch, for the command line.

TensorRT's ``IDequantizeLayer`` knows no zero points and wants constant, positive scales. Of blocks, its
reference for early versions of 10 allows those of four bits alone, that of later ones those of eight bits
too. TensorRT for RTX 1.7 builds engines of every form that passes here.
"""

from __future__ import annotations

from typing import Literal

from acespec.errors import AcespecError
from acespec.models.manifest import Quantization


def tensorrt_quantization(precision: Literal["int8", "int4"]) -> Quantization:
    """How weights are quantised for TensorRT unless asked otherwise.

    Both forms are read from TensorRT 10.3 on.
    """
    if precision == "int4":
        return Quantization(bits=4, block=32, symmetric=True, head_bits=8)
    return Quantization(bits=8, block=None, symmetric=True, head_bits=8)


def refuse_for_tensorrt(quantization: Quantization) -> None:
    """Raise ``AcespecError``, naming the remedy, for what no TensorRT reads."""
    if not quantization.symmetric:
        raise AcespecError("TensorRT knows no zero points; quantise symmetrically for it")
    if quantization.activation_bits is not None:
        raise AcespecError(
            "TensorRT has no scale for each row of the activations; quantise weights alone for it"
        )
