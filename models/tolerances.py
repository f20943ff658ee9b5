"""How far a graph's logits may be from PyTorch's at each precision. Free of torch: devices check too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.models.manifest import BundleManifest, Precision


@dataclass(frozen=True)
class Tolerance:
    """A logit may differ by ``absolute``, or by ``relative`` times the largest logit if that is more."""

    absolute: float
    relative: float

    def allowed(self, expected: NDArray[np.float32]) -> float:
        """The largest difference allowed from logits ``expected``."""
        return max(self.absolute, self.relative * float(np.max(np.abs(expected))))


TOLERANCES: dict[Precision, Tolerance] = {
    # Two correct float32 runs of a 30-layer model whose logits reach 40 differ by 1e-4.
    "fp32": Tolerance(1e-3, 1e-4),
    "fp16": Tolerance(1e-2, 1e-2),
    "bf16": Tolerance(8e-2, 8e-2),
    # Against PyTorch on the dequantised weights, in float32 but for kernels that round activations.
    "int8": Tolerance(1e-3, 1e-4),
    "int4": Tolerance(1e-3, 1e-4),
}
"""By precision. The unquantised ones against PyTorch on the same weights."""
NARROW_TYPES: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
"""Types of rows and masks that show that a graph computes in 16 bits, whatever holds its weights."""

ROUNDED_ACTIVATIONS = Tolerance(1.0, 0.15)
"""Where activations are rounded to 8 bits, the last bit of a sum decides which way, and that grows with every
layer. PyTorch itself, fed hidden states off by a millionth, gives SmolLM2 logits off by up to 3.6 of 34, or
1.2 where outliers were moved into weights. Widths of its step differ by up to 0.9."""


def run_tolerance(manifest: BundleManifest) -> Tolerance:
    """How far a bundle's engine may be from itself, fed the same tokens otherwise, and from PyTorch."""
    quantization = manifest.quantization
    if quantization is not None and quantization.activation_bits is not None:
        return ROUNDED_ACTIVATIONS
    types = {spec.dtype for variant in manifest.graphs for spec in variant.inputs}
    narrow = [precision for dtype, precision in NARROW_TYPES.items() if dtype in types]
    return TOLERANCES[narrow[0] if narrow else manifest.precision]
