"""Rotation and normalisation as fused operators: the same numbers, and nothing that only looks alike."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx.parser
import onnx_ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from acespec.export.graph_patterns import remove_unused
from acespec.export.layouts import cancel_layouts
from acespec.export.ort_norms import fuse_norms
from acespec.export.ort_rotary import fuse_rotations

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'

ROTATION = """
test (float[1, 2, N, 4] x, float[1, N, 2] half) => (float[1, 2, N, 4] y)
<int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] axis = {3}, int64[1] one = {1},
 float factor = {0.5}>
{
    angles = Concat <axis = -1> (half, half)
    flat_cos = Cos (angles)
    flat_sin = Sin (angles)
    cos = Unsqueeze (flat_cos, one)
    sin = Unsqueeze (flat_sin, one)
    straight = Mul (x, cos)
    low = Slice (x, zero, two, axis)
    high = Slice (x, two, four, axis)
    negated = Neg (high)
    turned = Concat <axis = -1> (negated, low)
    crossed = Mul (sin, turned)
    rotated = Add (straight, crossed)
    y = Mul (rotated, factor)
}
"""
NORM = """
test (float[1, N, 8] a, float[1, N, 8] b, float[8] weight) => (float[1, N, 8] y, float[1, N, 8] z)
<float two = {2.0}, int64[1] last = {-1}, float epsilon = {0.01}>
{
    x = Add (a, b)
    square = Pow (x, two)
    mean = ReduceMean <keepdims = 1> (square, last)
    shifted = Add (epsilon, mean)
    root = Sqrt (shifted)
    quotient = Div (x, root)
    y = Mul (weight, quotient)
    z = Neg (x)
}
"""


def parsed(text: str) -> onnx_ir.Model:
    """The graph of ``text`` with every shape known that can be."""
    model = onnx.parser.parse_model(HEADER + text)
    return onnx_ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))


def operators(model: onnx_ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def run(model: onnx_ir.Model, **inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(
        onnx_ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def rotation_pass(text: str) -> onnx_ir.Model:
    model = parsed(text)
    fuse_rotations(model.graph)
    cancel_layouts(model.graph)
    remove_unused(model.graph)
    return model


def test_a_rotation_and_the_scale_behind_it_are_one_operator() -> None:
    fused = rotation_pass(ROTATION)
    inputs = {"x": numbers(1, 2, 5, 4), "half": numbers(1, 5, 2)}
    np.testing.assert_allclose(run(fused, **inputs)[0], run(parsed(ROTATION), **inputs)[0], atol=1e-6)
    assert operators(fused)["RotaryEmbedding"] == 1
    assert not {"Neg", "Add"} & operators(fused).keys()
    assert operators(fused)["Mul"] == 2  # the scale, on half a table each


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("Concat <axis = -1> (half, half)", "Concat <axis = -1> (half, other)"),  # halves that differ
        ("(negated, low)", "(low, negated)"),  # the halves stay where they are
        ("Slice (x, zero, two, axis)", "Slice (x, one, three, axis)"),  # not the lower half
        ("straight = Mul (x, cos)", "straight = Mul (negative, cos)"),  # of something else
    ],
)
def test_what_only_looks_like_a_rotation_stays(written: str, instead: str) -> None:
    assert written in ROTATION
    text = ROTATION.replace(written, instead).replace("int64[1] two", "int64[1] three = {3}, int64[1] two")
    text = text.replace("{\n    angles", "{\n    other = Neg (half)\n    negative = Neg (x)\n    angles")
    left = rotation_pass(text)
    assert "RotaryEmbedding" not in operators(left)
    inputs = {"x": numbers(1, 2, 5, 4), "half": numbers(1, 5, 2)}
    np.testing.assert_array_equal(run(left, **inputs)[0], run(parsed(text), **inputs)[0])


def norm_pass(text: str) -> onnx_ir.Model:
    model = parsed(text)
    fuse_norms(model.graph)
    remove_unused(model.graph)
    return model


def test_a_norm_takes_the_addition_before_it_along() -> None:
    fused = norm_pass(NORM)
    inputs = {"a": numbers(1, 3, 8), "b": numbers(1, 3, 8) * 2, "weight": numbers(8)}
    for actual, expected in zip(run(fused, **inputs), run(parsed(NORM), **inputs), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert operators(fused) == {"SkipSimplifiedLayerNormalization": 1, "Neg": 1}


def test_a_norm_of_what_is_no_sum_is_one_operator() -> None:
    fused = norm_pass(NORM.replace("Add (a, b)", "Mul (a, b)"))
    assert operators(fused) == {"SimplifiedLayerNormalization": 1, "Mul": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("last = {-1}", "last = {1}"),  # over tokens
        ("two = {2.0}", "two = {3.0}"),  # not of squares
        ("Div (x, root)", "Div (a, root)"),  # of something else
        ("Pow (x, two)", "Pow (b, two)"),
    ],
)
def test_what_only_looks_like_a_norm_stays(written: str, instead: str) -> None:
    assert written in NORM
    left = norm_pass(NORM.replace(written, instead))
    assert not {"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"} & operators(left).keys()


def test_only_layouts_that_undo_each_other_cancel() -> None:
    model = parsed("""
    test (float[1, N, 8] x) => (float[1, N, 8] same, float[1, 2, N, 4] other)
    <int64[4] heads = {1, -1, 2, 4}, int64[3] rows = {1, -1, 8}>
    {
        split = Reshape (x, heads)
        swapped = Transpose <perm = [0, 2, 1, 3]> (split)
        back = Transpose <perm = [0, 2, 1, 3]> (swapped)
        flat = Reshape (back, rows)
        same = Neg (flat)
        other = Abs (swapped)
    }
    """)
    for value in (node.outputs[0] for node in model.graph if node.op_type == "Reshape"):
        assert value.shape is not None
        value.shape = onnx_ir.Shape([1, "N", *value.shape[2:]])  # inference gives -1 a name of its own
    cancel_layouts(model.graph)
    remove_unused(model.graph)
    assert operators(model) == {"Reshape": 1, "Transpose": 1, "Neg": 1, "Abs": 1}
    x = numbers(1, 3, 8)
    same, other = run(model, x=x)
    np.testing.assert_array_equal(same, -x)
    np.testing.assert_array_equal(other, np.abs(x.reshape(1, 3, 2, 4).transpose(0, 2, 1, 3)))
