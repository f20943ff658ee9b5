"""From a loaded model to graph files that passed their check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir
from transformers import PreTrainedModel

from acespec.export.check import GraphRunner, compare_logits, likeliest_tokens, torch_logits
from acespec.export.check_in_place import InPlaceRunner
from acespec.export.fixed_shapes import save_fixed
from acespec.export.graph import ATTENTION_DOMAIN, save_graph, tensor_spec, trace_graph, use_matrix_products
from acespec.export.integer_products import rounded_activations
from acespec.export.lower_ort import lower_ort
from acespec.export.lower_portable import lower_portable
from acespec.export.options import ExportOptions
from acespec.export.quantize import quantize_decoder, quantize_graph
from acespec.models.exportable import DecoderShape, ExportableDecoder
from acespec.models.manifest import GraphVariant, PrefillGraph
from acespec.models.probe import branching_probe, causal_probe
from acespec.models.tolerances import ROUNDED_ACTIVATIONS, TOLERANCES

Progress = Callable[[str], object]
"""Told, in a few words, what the export does next or found out."""
PROBE_TOKENS = 24


def write_graph(
    model: PreTrainedModel,
    folder: Path,
    sample_ids: Sequence[int],
    vocab_size: int,
    options: ExportOptions,
    progress: Progress,
) -> tuple[DecoderShape, GraphVariant]:
    """Trace, quantise, lower and write the graph that ``options`` ask for, and check it against PyTorch."""
    decoder = ExportableDecoder(model, vocab_size, options.context, options.top_k)
    probe = branching_probe(np.resize(sample_ids, PROBE_TOKENS))
    sample = causal_probe(sample_ids[: options.context])
    progress("running PyTorch, the reference")
    expected = torch_logits(model, probe, vocab_size)
    likeliest = torch_logits(model, sample, vocab_size).argmax(axis=1)

    use_matrix_products(decoder)
    matrices = {}
    rounds_activations = False
    if options.quantization is not None:
        progress(f"quantising the weights to {options.precision}")
        matrices = quantize_decoder(decoder, options.quantization)
        rounds_activations = options.quantization.activation_bits is not None
        with rounded_activations(decoder, matrices if rounds_activations else {}):
            expected = torch_logits(model, probe, vocab_size)

    progress("tracing the graph")
    traced = trace_graph(decoder)
    quantize_graph(traced, matrices)
    if options.graph == "ort":
        lower_ort(traced, decoder.shape, rounds_activations)
    else:
        lower_portable(traced, decoder.shape)
    del traced.opset_imports[ATTENTION_DOMAIN]
    file = folder / f"{options.graph}.onnx"
    save_graph(traced, file)
    variant = describe(traced, file, decoder, options)
    write_buckets(file, variant)

    progress("checking the graph against PyTorch")
    prefix = probe.count // 2
    runner = InPlaceRunner if options.graph == "ort" else GraphRunner
    actual = runner(file, variant).run(probe, (prefix, probe.count - prefix - 1, 1))
    tolerance = ROUNDED_ACTIVATIONS if rounds_activations else TOLERANCES[options.precision]
    difference = compare_logits(actual, expected, file, tolerance)
    progress(f"its logits differ from PyTorch's by at most {difference:.1e}")
    if matrices:
        quick = runner(file, variant, accuracy_level=4).run(sample, (sample.count,))
        share = float(np.mean(likeliest_tokens(quick) == likeliest))
        progress(f"its likeliest token is the full model's at {share:.0%} of {sample.count} positions")
    return decoder.shape, variant


def describe(
    model: onnx_ir.Model, file: Path, decoder: ExportableDecoder, options: ExportOptions
) -> GraphVariant:
    """What the manifest says of a graph."""
    if options.layout == "split":
        files = {width: f"{file.stem}.b{width}.onnx" for width in options.buckets}
        prefill = f"{file.stem}.prefill{options.prefill_chunk}.onnx"
    else:
        files, prefill = dict.fromkeys(options.buckets, file.name), file.name
    has_fixed_rows = options.graph != "ort"
    return GraphVariant(
        name=options.graph,
        opset=model.opset_imports[""],
        bucket_files=files,
        prefill=PrefillGraph(width=options.prefill_chunk, file=prefill),
        rows=options.context + options.tree_rows if has_fixed_rows else None,
        masks=decoder.masks,
        inputs=tuple(map(tensor_spec, model.graph.inputs)),
        outputs=tuple(map(tensor_spec, model.graph.outputs)),
    )


def write_buckets(file: Path, variant: GraphVariant) -> None:
    """Write the graphs with fixed shapes that ``variant`` names beside the one they are made from."""
    assert variant.prefill is not None
    wanted = [(name, width, width) for width, name in variant.bucket_files.items()]
    wanted.append((variant.prefill.file, variant.prefill.width, 1))
    for name, width, logit_rows in wanted:
        if name != file.name:
            assert variant.rows is not None
            sizes = {"N": width, "M": logit_rows, "S": variant.rows, "R": variant.rows}
            save_fixed(file, file.parent / name, sizes | {"T": variant.rows + width})
