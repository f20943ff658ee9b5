"""What was typed after ``acespec export`` becomes options, with each runtime's defaults, or a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from acespec.errors import AcespecError
from acespec.export.arguments import ExportArguments, export_options
from acespec.export.options import DEFAULT_BUCKETS, ExportOptions
from acespec.models.manifest import Quantization


def options(**typed: Any) -> ExportOptions:
    return export_options(ExportArguments(**{"buckets": "1,8,16,32,64", **typed}))


def quantization(**typed: Any) -> Quantization:
    chosen = options(**typed).quantization
    assert chosen is not None
    return chosen


def test_nothing_typed_is_the_fastest_on_a_cpu() -> None:
    chosen = options()
    assert (chosen.graph, chosen.precision, chosen.layout) == ("ort", "int8", "profiles")
    assert chosen.buckets == DEFAULT_BUCKETS
    assert chosen.quantization == Quantization(
        bits=8, block=None, symmetric=True, head_bits=8, activation_bits=8
    )


@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt-rtx"])
def test_tensorrt_gets_half_precision_and_weights_it_can_read(runtime: str) -> None:
    chosen = options(runtime=runtime)
    assert (chosen.graph, chosen.precision, chosen.quantization) == ("portable", "fp16", None)
    assert options(runtime=runtime, graph="native").graph == "native"
    for precision in ("int8", "int4"):
        assert quantization(runtime=runtime, precision=precision).symmetric
        assert quantization(runtime=runtime, precision=precision).activation_bits is None
        assert options(runtime=runtime, precision=precision).floats == "fp16"
    assert options(precision="int4").floats == options().floats == "fp32"
    assert options(runtime=runtime, precision="bf16").floats == "bf16"


@pytest.mark.parametrize("typed", [{"precision": "fp16"}, {"layout": "split", "precision": "int4"}])
def test_onnx_runtime_gets_the_portable_graph_where_its_own_cannot_do_it(typed: dict[str, Any]) -> None:
    assert options(**typed).graph == "portable"


def test_each_option_changes_its_own_field() -> None:
    int4 = {"precision": "int4"}
    assert quantization(**int4).block == 32
    assert quantization(**int4, block="128").block == 128
    assert quantization(**int4, block="column").block is None
    assert quantization(**int4, symmetric=True).symmetric
    assert not quantization(**int4, symmetric=False).symmetric
    assert quantization(**int4, head="int4").head_bits == 4
    assert quantization(**int4, head="float").head_bits is None
    assert quantization(**int4, embeddings="int8").embedding_bits == 8
    assert quantization(activations="float").activation_bits is None
    chosen = options(context=512, prefill_chunk=128, tree_rows=64, logits="topk:40", buckets="4,1")
    assert (chosen.context, chosen.prefill_chunk, chosen.tree_rows) == (512, 128, 64)
    assert (chosen.top_k, chosen.buckets) == (40, (1, 4))


@pytest.mark.parametrize("typed", [{"block": "32"}, {"symmetric": False}])
def test_weights_integer_products_cannot_use_bring_float_activations(typed: dict[str, Any]) -> None:
    assert quantization(**typed).activation_bits is None


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"graph": "native"}, "choose --runtime tensorrt, or --graph ort"),
        ({"runtime": "tensorrt", "graph": "ort"}, "choose --graph portable for tensorrt"),
        ({"runtime": "tensorrt", "graph": "native", "precision": "fp32"}, "16-bit floats alone"),
        ({"precision": "bf16"}, "choose --precision fp16 or --runtime tensorrt"),
        ({"precision": "fp32", "block": "32", "head": "int4"}, "--block, --head says nothing"),
        ({"precision": "fp32", "symmetric": False}, "--asymmetric says nothing"),
        ({"runtime": "tensorrt", "precision": "int8", "symmetric": False}, "no zero points"),
        (
            {"runtime": "tensorrt", "precision": "int8", "activations": "int8"},
            "--graph ort alone|weights alone",
        ),
        ({"block": "32", "activations": "int8"}, "choose --block column --symmetric"),
        ({"block": "64"}, "--block is one of 32, 128, column; not '64'"),
        ({"graph": "ort", "precision": "fp16"}, "choose --precision int8, int4 or fp32, or --graph portable"),
        ({"graph": "ort", "layout": "split"}, "for fixed shapes choose --graph portable"),
        ({"logits": "topk:0"}, "'full' or 'topk:K'"),
        ({"logits": "topk:²"}, "'full' or 'topk:K'"),
        ({"logits": "topk:" + "9" * 5000}, "'full' or 'topk:K'"),
        ({"context": 2**24}, "context must be between 1 and 16777215"),
        ({"tree_rows": 10**20}, "tree's rows must be between 1 and 16777215"),
        ({"buckets": "a"}, "numbers with commas between"),
    ],
)
def test_what_cannot_be_had_together_is_named_with_the_remedy(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(AcespecError, match=message) as caught:
        options(**typed)
    assert "\n" not in str(caught.value)
