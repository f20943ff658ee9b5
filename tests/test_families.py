"""Each family through the portable graph against Hugging Face's own model called plainly: it makes its masks,
windows and positions itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from acespec.export.check import GraphRunner
from acespec.export.graph import MatrixProduct, save_graph, trace_graph, use_matrix_products
from acespec.export.lower_portable import lower_portable
from acespec.export.options import ExportOptions
from acespec.export.write import describe
from acespec.models.architecture import UnsupportedModelError
from acespec.models.exportable import ExportableDecoder, additive_masks
from acespec.models.layer_masks import MaskError, window_of
from acespec.models.manifest import AttentionMask, GraphVariant
from acespec.models.probe import Probe, branching_probe
from tiny_families import CONTEXT, NAMED, SUPPORTED, UNSUPPORTED, WINDOW

VOCAB = 257
TOKENS = 34
PROBE = branching_probe((np.arange(TOKENS) * 53 + 11) % VOCAB, branch_length=5)
"""A text of 24 tokens, three windows long, and two branches."""
WIDTHS = (16, 1, 6, 10, 1)
"""Steps it is fed in: the last one but one holds the first branch and most of the second."""
TWO_MASKS = (AttentionMask(name="mask_full"), AttentionMask(name="mask_sliding", window=WINDOW))
TRACED = [*NAMED, "cohere 2", "gpt 2, learned positions", "ministral 3, scores scaled by position"]
WITH_WINDOW = {"mistral", "phi 3", "starcoder 2"}
WITH_TWO_MASKS = {"qwen 2, mixed windows", "gemma 3", "cohere 2", "exaone 4", "olmo 3"}


@torch.no_grad()
def plain_logits(model: PreTrainedModel, probe: Probe) -> NDArray[np.float32]:
    """A forward of each path of ``probe`` as a text of its own, with a 2-D mask of ones and nothing else."""
    logits = np.empty((probe.count, VOCAB), np.float32)
    for path in probe.paths():
        text = torch.from_numpy(probe.tokens[path])[None]
        output = model(input_ids=text, attention_mask=torch.ones_like(text), use_cache=False)
        logits[path] = output.logits[0, :, :VOCAB].numpy()
    return logits


def portable_graph(decoder: ExportableDecoder, folder: Path) -> tuple[Path, GraphVariant]:
    use_matrix_products(decoder)
    graph = trace_graph(decoder)
    lower_portable(graph, decoder.shape)
    file = folder / "portable.onnx"
    save_graph(graph, file)
    return file, describe(graph, file, decoder, ExportOptions(context=CONTEXT))


@pytest.mark.parametrize("name", TRACED)
def test_chain_and_tree_steps_of_the_graph_equal_the_plain_model(name: str, tmp_path: Path) -> None:
    file, variant = portable_graph(ExportableDecoder(SUPPORTED[name](), VOCAB, CONTEXT), tmp_path)
    operators = {node.op_type for node in onnx.load(file, load_external_data=False).graph.node}
    assert not operators & {"If", "Loop", "ReduceMax", "Where"}, "it decides something by what it is fed"
    logits = GraphRunner(file, variant).run(PROBE, WIDTHS).values
    np.testing.assert_allclose(logits, plain_logits(SUPPORTED[name](), PROBE), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", SUPPORTED)
@torch.no_grad()
def test_a_tree_in_one_step_equals_the_plain_model(name: str) -> None:
    """The model's own code behind our masks, as it is traced. Tracing is the same for all."""
    decoder = ExportableDecoder(SUPPORTED[name](), VOCAB, CONTEXT)
    if name in WITH_TWO_MASKS:
        assert decoder.masks == TWO_MASKS
    else:
        assert decoder.masks == (AttentionMask(name="mask", window=WINDOW if name in WITH_WINDOW else None),)
    (logits,) = decoder(
        torch.from_numpy(PROBE.tokens)[None],
        torch.from_numpy(PROBE.positions)[None],
        torch.arange(PROBE.count),
        additive_masks(PROBE, decoder.masks, torch.float32),
    )
    expected = plain_logits(SUPPORTED[name](), PROBE)
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits[0].numpy(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt 2, learned positions", "phi 3", "qwen 2.5, biases"])
def test_every_matrix_is_one_that_can_be_quantised(name: str) -> None:
    decoder = ExportableDecoder(SUPPORTED[name](), VOCAB, CONTEXT)
    use_matrix_products(decoder)
    products = {path for path, module in decoder.named_modules() if isinstance(module, MatrixProduct)}
    tables = {path for path, module in decoder.named_modules() if isinstance(module, nn.Embedding)}
    matrices = {path.rpartition(".")[0] for path, each in decoder.named_parameters() if each.dim() == 2}
    assert matrices == products | tables


def test_a_window_as_long_as_the_context_is_none() -> None:
    """Otherwise the same: one row less in sight, at the last position alone."""
    assert ExportableDecoder(NAMED["mistral"](), VOCAB, WINDOW).masks == (AttentionMask(name="mask"),)
    assert ExportableDecoder(NAMED["gemma 3"](), VOCAB, WINDOW).masks == (AttentionMask(name="mask"),)
    assert ExportableDecoder(NAMED["gemma 3"](), VOCAB, WINDOW + 1).masks == TWO_MASKS


def test_longrope_is_refused_where_its_frequencies_change_and_told_how_to_avoid_it() -> None:
    build = NAMED["phi 4 mini, longrope"]
    ExportableDecoder(build(), VOCAB, CONTEXT)
    with pytest.raises(UnsupportedModelError, match=rf"longrope.*with --context {CONTEXT} or less"):
        ExportableDecoder(build(), VOCAB, CONTEXT + 1)


def test_longrope_keeps_the_short_factors_after_a_long_text() -> None:
    """Transformers leaves the factors of the last text in the module."""
    model = NAMED["phi 4 mini, longrope"]()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, CONTEXT + 3, dtype=torch.int64), use_cache=False)
    decoder = ExportableDecoder(model, VOCAB, CONTEXT)
    np.testing.assert_array_equal(
        decoder.model.model.rotary_emb.inv_freq,
        NAMED["phi 4 mini, longrope"]().model.rotary_emb.inv_freq,
    )


@given(context=st.integers(1, 60), window=st.integers(1, 70))
def test_windows_are_read_off_mask_functions(context: int, window: int) -> None:
    found = window_of(sliding_window_causal_mask_function(window), context)
    assert found == (None if window >= context else window)
    assert window_of(causal_mask_function, context) is None


def test_other_masks_are_not_taken_for_windows() -> None:
    chunked = chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    for function in (chunked, bidirectional_mask_function, sliding_window_bidirectional_mask_function(5)):
        with pytest.raises(MaskError, match="neither causal nor a window"):
            window_of(function, CONTEXT)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_no_graph_can_hold_is_refused_by_name_with_the_reason(name: str) -> None:
    build, reason = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        ExportableDecoder(build(), VOCAB, CONTEXT)
    assert "\n" not in str(caught.value)
