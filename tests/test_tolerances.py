"""Which tolerance holds for a bundle."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.models.manifest import BundleManifest, GraphVariant, Precision, Quantization, TensorSpec
from acespec.models.tolerances import ROUNDED_ACTIVATIONS, TOLERANCES, Tolerance, run_tolerance


def manifest(precision: Precision, rows: str, activation_bits: int | None = None) -> BundleManifest:
    """What of a manifest says how its graph, whose rows are of type ``rows``, computes."""
    tensors = [TensorSpec(name="input_ids", dtype="int64", shape=(1, "N"))]
    tensors.append(TensorSpec(name="past_key.0", dtype=rows, shape=("S", 1, 8)))
    stored = None
    if precision in ("int8", "int4"):
        stored = Quantization(
            bits=8, block=None, symmetric=True, head_bits=8, activation_bits=activation_bits
        )
    variant = GraphVariant.model_construct(inputs=tuple(tensors))
    return BundleManifest.model_construct(precision=precision, quantization=stored, graphs=(variant,))


@pytest.mark.parametrize(
    ("precision", "rows", "expected"),
    [
        ("fp32", "float", "fp32"),
        ("fp16", "float16", "fp16"),
        ("bf16", "bfloat16", "bf16"),
        ("int8", "float", "int8"),
        ("int4", "float16", "fp16"),
        ("int4", "bfloat16", "bf16"),
    ],
)
def test_weights_in_integers_are_held_to_the_floats_they_are_multiplied_in(
    precision: Precision, rows: str, expected: Precision
) -> None:
    assert run_tolerance(manifest(precision, rows)) is TOLERANCES[expected]


def test_rounded_activations_have_a_tolerance_of_their_own() -> None:
    assert run_tolerance(manifest("int8", "float", activation_bits=8)) is ROUNDED_ACTIVATIONS


def test_the_larger_of_both_bounds_counts() -> None:
    tolerance = Tolerance(absolute=0.5, relative=0.1)
    assert tolerance.allowed(np.array([1.0, -2.0], np.float32)) == 0.5
    assert tolerance.allowed(np.array([1.0, -20.0], np.float32)) == pytest.approx(2.0)
