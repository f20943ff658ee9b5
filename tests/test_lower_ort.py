"""ONNX Runtime's graph form: the same logits as PyTorch, and every layer in fused operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from acespec.export.check import torch_logits
from acespec.export.check_in_place import InPlaceRunner
from acespec.export.graph import ATTENTION_DOMAIN, save_graph, trace_graph, use_matrix_products
from acespec.export.graph_patterns import CONTRIB
from acespec.export.integer_products import rounded_activations
from acespec.export.lower_ort import lower_ort
from acespec.export.options import ExportOptions
from acespec.export.quantize import quantize_decoder, quantize_graph
from acespec.export.write import describe
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import GraphVariant, Quantization
from acespec.models.probe import Probe, branching_probe
from tiny_target import MAX_CONTEXT, SHAPE, tiny_model

VOCAB = 257
ROWS = MAX_CONTEXT + 41
WEIGHTS_ONLY = Quantization(bits=4, block=32, symmetric=False, head_bits=8)
INTEGERS = Quantization(bits=8, block=None, symmetric=True, head_bits=8, activation_bits=8)


def model_of(architecture: str) -> PreTrainedModel:
    """A tiny model; ``wide`` is a Llama whose heads are wide enough for the attention to rotate."""
    if architecture != "wide":
        return tiny_model(architecture)
    torch.manual_seed(7)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=16)).eval()


class Lowered:
    """A tiny model in ONNX Runtime's form, on disk."""

    def __init__(
        self, folder: Path, architecture: str = "llama", quantization: Quantization | None = None
    ) -> None:
        self.model = model_of(architecture)
        self.decoder = ExportableDecoder(self.model, VOCAB, MAX_CONTEXT)
        use_matrix_products(self.decoder)
        self.matrices = {} if quantization is None else quantize_decoder(self.decoder, quantization)
        self.graph = trace_graph(self.decoder)
        quantize_graph(self.graph, self.matrices)
        rounds = quantization is not None and quantization.activation_bits is not None
        lower_ort(self.graph, self.decoder.shape, MAX_CONTEXT, ROWS, rounds)
        del self.graph.opset_imports[ATTENTION_DOMAIN]
        self.file = folder / "ort.onnx"
        save_graph(self.graph, self.file)
        self.variant: GraphVariant = describe(
            self.graph, self.file, self.decoder, ExportOptions((1, 4), MAX_CONTEXT, graph="ort")
        )

    def logits(self, probe: Probe, widths: tuple[int, ...]) -> NDArray[np.float32]:
        return InPlaceRunner(self.file, self.variant).run(probe, widths).values

    @property
    def operators(self) -> Counter[str]:
        return Counter(node.op_type for node in self.graph.graph)


def tree(count: int = 24) -> Probe:
    return branching_probe(np.random.default_rng(5).integers(0, VOCAB, count))


@pytest.fixture(scope="module", params=["llama", "wide", "qwen3", "mistral"])
def lowered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    return Lowered(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("widths", [(24,), (12, 11, 1), (1,) * 24])
def test_a_tree_has_pytorchs_logits_however_it_is_cut_into_steps(
    lowered: Lowered, widths: tuple[int, ...]
) -> None:
    expected = torch_logits(lowered.model, tree(), VOCAB)
    np.testing.assert_allclose(lowered.logits(tree(), widths), expected, atol=5e-5)


def test_every_layer_is_fused(lowered: Lowered) -> None:
    """Two layers: attention, its rotations, and all normalisations; nothing is transposed on its way.

    Only heads of a multiple of 16 numbers, as Qwen3's are here, are rotated by the attention itself.
    """
    operators = lowered.operators
    assert operators["GroupQueryAttention"] == 2
    rotates_inside = lowered.decoder.shape.head_dim % 16 == 0
    assert operators["RotaryEmbedding"] == (0 if rotates_inside else 4)
    # Before each half of a layer and before the head; Qwen3 normalises queries and keys too.
    norms = operators["SimplifiedLayerNormalization"] + operators["SkipSimplifiedLayerNormalization"]
    assert norms == (9 if type(lowered.model).__name__.startswith("Qwen3") else 5)
    assert operators["SkipSimplifiedLayerNormalization"] == 4
    assert operators["MatMul"] == 2 * 4 + 1
    assert not {"Transpose", "Pow", "Sqrt", "Neg"} & operators.keys()
    assert operators["Concat"] == (0 if rotates_inside else 1)  # the rotation's frequencies


def test_attention_that_rotates_takes_what_was_multiplied_as_one(lowered: Lowered) -> None:
    """Unless queries and keys are normalised in between, as Qwen3's are."""
    nodes = [node for node in lowered.graph.graph if node.op_type == "GroupQueryAttention"]
    rotates = lowered.decoder.shape.head_dim % 16 == 0
    is_qwen = type(lowered.model).__name__.startswith("Qwen3")
    assert all(("do_rotary" in node.attributes) == rotates for node in nodes)
    assert all((node.inputs[1] is None) == (rotates and not is_qwen) for node in nodes)
    assert lowered.operators["Split"] == (
        2 if rotates and not is_qwen else 4
    )  # gate and up; queries, keys, values


def test_the_interface_is_the_manifests(lowered: Lowered) -> None:
    specs = {spec.name: spec for spec in (*lowered.variant.inputs, *lowered.variant.outputs)}
    heads, head_dim = lowered.decoder.shape.num_kv_heads, lowered.decoder.shape.head_dim
    assert (specs["past_length"].dtype, specs["past_length"].shape) == ("int32", (1,))
    assert specs["mask"].shape == (1, 1, "N", "T")
    for layer in range(2):
        for name in (f"past_key.{layer}", f"past_value.{layer}", f"present_key.{layer}"):
            assert specs[name].shape == (1, heads, "R", head_dim)
    assert specs["logits"].shape == (1, "M", VOCAB)


def test_nothing_newer_than_what_the_oldest_runtime_reads(lowered: Lowered) -> None:
    assert lowered.graph.opset_imports == {"": 21, CONTRIB: 1}


def test_four_bit_weights_are_merged_and_computed_as_stored(tmp_path: Path) -> None:
    lowered = Lowered(tmp_path, "llama", WEIGHTS_ONLY)
    expected = torch_logits(lowered.model, tree(), VOCAB)  # its weights are the dequantised ones
    np.testing.assert_allclose(lowered.logits(tree(), (12, 11, 1)), expected, atol=5e-5)
    assert lowered.operators["DequantizeLinear"] == 2 * 3 + 1  # 48 inputs make no blocks of 32


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    return Lowered(tmp_path_factory.mktemp("integers"), "llama", INTEGERS)


def test_rounded_activations_are_pytorchs_rounded_alike(integers: Lowered) -> None:
    """Not to the bit: where a sum's last bit decides which way a value is rounded, a step of 1/127 opens."""
    assert integers.operators["MatMulIntegerToFloat"] == 2 * 4 + 1
    assert "MatMul" not in integers.operators
    with rounded_activations(integers.decoder, integers.matrices):
        expected = torch_logits(integers.model, tree(), VOCAB)
    unrounded = torch_logits(integers.model, tree(), VOCAB)
    actual = integers.logits(tree(), (12, 11, 1))
    error = np.abs(actual - expected).mean()
    assert error < 0.25 * np.abs(unrounded - expected).mean()


def test_a_rounded_row_depends_on_no_other_row(integers: Lowered) -> None:
    """Tokens that attend to themselves alone give the same to the bit, whatever the others are."""
    probe = tree()
    mask = np.eye(probe.count, dtype=np.bool_)
    alone = Probe(probe.tokens, probe.positions, mask)
    other_tokens = probe.tokens.copy()
    other_tokens[1::2] = (other_tokens[1::2] + 91) % VOCAB
    others = Probe(other_tokens, probe.positions, mask)
    np.testing.assert_array_equal(integers.logits(alone, (24,))[::2], integers.logits(others, (24,))[::2])
