"""Tables that attention rotates by: constants that equal what a step computes, or none at all."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from acespec.export.graph_patterns import attribute
from acespec.export.ort_attention import rotate_inside

CONTEXT, ROWS = 12, 20
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM

GRAPH = f"""
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
test (float[1, N, {WIDTH}] x, int64[1, N] position_ids, float[1, 1, N, T] mask,
      float[1, {KV_HEADS}, R, {HEAD_DIM}] past_key, float[1, {KV_HEADS}, R, {HEAD_DIM}] past_value,
      int32[1] last, int32[1] total)
  => (float[1, N, {HEADS * HEAD_DIM}] y, float[1, {KV_HEADS}, R, {HEAD_DIM}] present_key,
      float[1, {KV_HEADS}, R, {HEAD_DIM}] present_value)
<int64[3] sizes = {{{HEADS * HEAD_DIM}, {KV_HEADS * HEAD_DIM}, {KV_HEADS * HEAD_DIM}}},
 int64[1] first = {{0}}, int64[2] table = {{-1, 8}}, int64[1] axis = {{2}}, float factor = {{0.25}},
 float[8] frequencies = {{1.0, 0.6, 0.36, 0.216, 0.13, 0.078, 0.047, 0.028}}>
{{
    wide = Unsqueeze (position_ids, axis)
    numbers = Cast <to = 1> (wide)
    angles = Mul (numbers, frequencies)
    all_cos = Cos (angles)
    all_sin = Sin (angles)
    cos = Reshape (all_cos, table)
    sin = Reshape (all_sin, table)
    query_cos = Mul (cos, factor)
    query_sin = Mul (sin, factor)
    q, k, v = Split <axis = -1> (x, sizes)
    query = com.microsoft.RotaryEmbedding <num_heads = {HEADS}> (q, first, query_cos, query_sin)
    key = com.microsoft.RotaryEmbedding <num_heads = {KV_HEADS}> (k, first, cos, sin)
    y, present_key, present_value = com.microsoft.GroupQueryAttention
        <num_heads = {HEADS}, kv_num_heads = {KV_HEADS}, scale = 1.0>
        (query, key, v, past_key, past_value, last, total, , , , mask)
}}
"""


def parsed(text: str) -> onnx_ir.Model:
    return onnx_ir.from_proto(onnx.parser.parse_model(text))


def rotated(text: str) -> onnx_ir.Model:
    model = parsed(text)
    rotate_inside(model.graph, model.opset_imports, CONTEXT, ROWS)
    return model


def attention(model: onnx_ir.Model) -> onnx_ir.Node:
    return next(node for node in model.graph if node.op_type == "GroupQueryAttention")


def steps(model: onnx_ir.Model) -> NDArray[np.float32]:
    """What two steps give, the second a tree whose positions repeat, behind a row that no token sees."""
    session = onnxruntime.InferenceSession(
        onnx_ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    generator = np.random.default_rng(3)
    past = {name: np.zeros((1, KV_HEADS, ROWS, HEAD_DIM), np.float32) for name in ("key", "value")}
    given = []
    rows = 1
    for positions in ([0, 1, 2, 3, 4], [5, 6, 6, 5]):
        count = len(positions)
        mask = np.zeros((1, 1, count, rows + count), np.float32)
        mask[..., 0] = -1e4
        feeds = {
            "x": generator.standard_normal((1, count, WIDTH)).astype(np.float32),
            "position_ids": np.array([positions]),
            "mask": mask,
            "past_key": past["key"],
            "past_value": past["value"],
            "last": np.array([rows + count - 1], np.int32),
            "total": np.array([rows + count], np.int32),
        }
        output, past["key"], past["value"] = session.run(None, feeds)
        given.append(output[0])
        rows += count
    return np.concatenate(given)


def test_it_computes_what_the_operators_before_it_did() -> None:
    model = rotated(GRAPH)
    assert [node.op_type for node in model.graph] == ["GroupQueryAttention"]
    assert attribute(attention(model), "do_rotary") == 1
    np.testing.assert_allclose(steps(model), steps(parsed(GRAPH)), atol=1e-6)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("(numbers, frequencies)", "(scaled, frequencies)"),  # frequencies change with the longest position
        ("Mul (sin, factor)", "Mul (cos, factor)"),  # queries turn otherwise than keys
        ("Mul (numbers,", "Mul (shifted,"),  # by what a step is given besides positions
    ],
)
def test_tables_that_are_not_of_positions_alone_stay(written: str, instead: str) -> None:
    assert written in GRAPH
    added = """numbers = Cast <to = 1> (wide)
    longest = ReduceMax <keepdims = 0> (numbers)
    scaled = Div (numbers, longest)
    float_total = Cast <to = 1> (total)
    shifted = Add (numbers, float_total)"""
    text = GRAPH.replace(written, instead).replace("numbers = Cast <to = 1> (wide)", added)
    model = rotated(text)
    assert attribute(attention(model), "do_rotary") is None
    assert sum(node.op_type == "RotaryEmbedding" for node in model.graph) == 2


def test_parts_in_another_order_are_rotated_but_not_taken_as_one() -> None:
    text = GRAPH.replace("q, k, v = Split", "q, v, k = Split")
    model = rotated(text)
    assert [node.op_type for node in model.graph] == ["Split", "GroupQueryAttention"]
    np.testing.assert_allclose(steps(model), steps(parsed(text)), atol=1e-6)
