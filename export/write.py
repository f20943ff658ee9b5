"""From a model folder to graph files that passed their check."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from acespec.export.check import GraphRunner, compare_logits, likeliest_tokens, torch_logits
from acespec.export.check_in_place import InPlaceRunner
from acespec.export.counted import Counted
from acespec.export.fixed_shapes import save_fixed
from acespec.export.graph import (
    ATTENTION_DOMAIN,
    empty_weights,
    forget_weights,
    save_graph,
    tensor_spec,
    trace_graph,
    use_matrix_products,
)
from acespec.export.integer_products import rounded_activations
from acespec.export.lower_native import lower_native
from acespec.export.lower_ort import lower_ort
from acespec.export.lower_portable import lower_portable
from acespec.export.options import ExportOptions
from acespec.export.quantize import quantize_graph
from acespec.export.round_weights import read_by_tensorrt, round_weights
from acespec.export.widen import save_widened
from acespec.models.exportable import DecoderShape, ExportableDecoder, load_decoder
from acespec.models.manifest import GraphVariant, PrefillGraph
from acespec.models.probe import Probe, branching_probe, causal_probe
from acespec.models.tolerances import ROUNDED_ACTIVATIONS, TOLERANCES, Tolerance

Progress = Callable[[str], object]
"""Told, in a few words, what the export does next or found out."""
PROBE_TOKENS = 24
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class WrittenGraph:
    """What a manifest says of a graph and of the model it was made from."""

    variant: GraphVariant
    shape: DecoderShape
    context: int
    """Positions the draft may use: those asked for, or those the model knows if they are fewer."""


@dataclass(frozen=True)
class SampleTokens:
    """Texts in the model's tokens."""

    probe: Sequence[int]
    """What graph and PyTorch are compared on."""
    calibration: Sequence[int]
    """What outliers are looked for in, where weights are quantised."""


@dataclass(frozen=True)
class Reference:
    """What PyTorch computes, kept when the model is gone."""

    probe: Probe
    expected: NDArray[np.float32]  # [n, vocab_size], with the weights the graph has
    sample: Probe
    likeliest: NDArray[np.int64]  # [n], with the model's own weights
    tolerance: Tolerance


def write_graph(
    model_folder: Path,
    folder: Path,
    samples: SampleTokens,
    vocab_size: int,
    options: ExportOptions,
    progress: Progress,
) -> WrittenGraph:
    """Trace, quantise, lower and write the graph that ``options`` ask for, and check it against PyTorch."""
    progress("loading the model")
    written, reference = _write(
        load_decoder(model_folder, DTYPES["fp32" if options.quantization else options.floats or "fp32"]),
        folder,
        samples,
        vocab_size,
        options,
        progress,
    )
    release_memory()  # the model is gone, and the check holds its weights once more
    progress("checking the graph against PyTorch")
    check_graph(folder / f"{options.graph}.onnx", written.variant, reference, options, progress)
    return written


def _write(
    model: PreTrainedModel,
    folder: Path,
    samples: SampleTokens,
    vocab_size: int,
    options: ExportOptions,
    progress: Progress,
) -> tuple[WrittenGraph, Reference]:
    """Write the graph, and say what PyTorch computes in its place."""
    known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    options = replace(options, context=min(options.context, known or options.context))
    decoder = ExportableDecoder(model, vocab_size, options.context, options.top_k)
    probe = branching_probe(np.resize(samples.probe, PROBE_TOKENS))
    sample = causal_probe(samples.probe[: options.context])
    progress("running PyTorch, the reference")
    expected = torch_logits(model, probe, vocab_size)
    likeliest = torch_logits(model, sample, vocab_size).argmax(axis=1)

    use_matrix_products(decoder, to_be_changed=options.quantization is not None)
    matrices = {}
    rounds_activations = False
    if options.quantization is not None:
        progress(f"quantising the weights to {options.precision}")
        counted = Counted(progress, "matrices quantised")
        matrices = round_weights(decoder, options.quantization, samples.calibration, options.graph, counted)
        narrow_weights(decoder, DTYPES[options.floats or "fp32"])
        rounds_activations = options.quantization.activation_bits is not None
        with rounded_activations(decoder, matrices if rounds_activations else {}):
            expected = torch_logits(model, probe, vocab_size)
        empty_weights(decoder, matrices)

    progress("tracing the graph")
    traced = trace_graph(decoder)
    if options.quantization is not None:
        for_tensorrt = read_by_tensorrt(options.quantization, options.graph)
        quantize_graph(traced, matrices, for_tensorrt=for_tensorrt)
    if options.graph == "ort":
        lower_ort(
            traced,
            decoder.shape,
            options.context,
            options.context + options.tree_rows + 1,
            rounds_activations,
        )
    elif options.graph == "native":
        lower_native(traced, decoder.shape, options.context + options.tree_rows)
    else:
        lower_portable(traced, decoder.shape)
    del traced.opset_imports[ATTENTION_DOMAIN]
    file = folder / f"{options.graph}.onnx"
    save_graph(traced, file)
    variant = describe(traced, file, decoder, options)
    write_buckets(file, variant)
    forget_weights(traced.graph)
    tolerance = ROUNDED_ACTIVATIONS if rounds_activations else _tolerance(options)
    return (
        WrittenGraph(variant, decoder.shape, options.context),
        Reference(probe, expected, sample, likeliest, tolerance),
    )


def _tolerance(options: ExportOptions) -> Tolerance:
    """Rounding of 16-bit floats is coarser than what kernels for quantised weights add in float32."""
    narrow = options.floats in ("fp16", "bf16")
    return TOLERANCES[options.floats if narrow and options.floats else options.precision]


def check_graph(
    file: Path, variant: GraphVariant, reference: Reference, options: ExportOptions, progress: Progress
) -> None:
    """Run the graph in ``file`` and compare. Raises `ExportShapeError` or `ExportToleranceError`."""
    if options.precision == "bf16":
        with tempfile.TemporaryDirectory(dir=file.parent) as beside:
            twin = Path(beside) / file.name
            save_widened(file, twin)
            progress("its twin in float32 is checked: no CPU kernel multiplies bf16")
            _check_file(twin, variant, reference, options, progress)
        return
    _check_file(file, variant, reference, options, progress)


def _check_file(
    file: Path, variant: GraphVariant, reference: Reference, options: ExportOptions, progress: Progress
) -> None:
    probe, sample = reference.probe, reference.sample
    runner = GraphRunner if options.graph == "portable" else InPlaceRunner
    prefix = probe.count // 2
    actual = runner(file, variant, prepack=False).run(probe, (prefix, probe.count - prefix - 1, 1))
    difference = compare_logits(actual, reference.expected, file, reference.tolerance)
    allowed = reference.tolerance.allowed(reference.expected)
    why = ""
    if reference.tolerance is ROUNDED_ACTIVATIONS:
        why = ": its activations are rounded to 8 bits, see docs/export.md, Precision"
    progress(f"its logits differ from PyTorch's by at most {difference:.1e} (allowed {allowed:.1e}{why})")
    if options.quantization is not None:
        quick = runner(file, variant, accuracy_level=4).run(sample, (sample.count,))
        share = float(np.mean(likeliest_tokens(quick) == reference.likeliest))
        progress(f"its likeliest token is the full model's at {share:.0%} of {sample.count} positions")


def narrow_weights(decoder: ExportableDecoder, dtype: torch.dtype) -> None:
    """Give the decoder's weights another type; what it computes with besides them stays in float32."""
    for weight in decoder.parameters():
        weight.data = weight.data.to(dtype)


def release_memory() -> None:
    """Give freed memory back to the system, where its allocator can be asked to (glibc)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def describe(
    model: onnx_ir.Model, file: Path, decoder: ExportableDecoder, options: ExportOptions
) -> GraphVariant:
    """What the manifest says of a graph."""
    if options.layout == "split":
        files = {width: f"{file.stem}.b{width}.onnx" for width in options.buckets}
        prefill = f"{file.stem}.prefill{options.prefill_chunk}.onnx"
    else:
        files, prefill = dict.fromkeys(options.buckets, file.name), file.name
    return GraphVariant(
        name=options.graph,
        opset=model.opset_imports[""],
        bucket_files=files,
        prefill=PrefillGraph(width=options.prefill_chunk, file=prefill),
        rows=options.context + options.tree_rows,
        masks=decoder.masks,
        inputs=tuple(map(tensor_spec, model.graph.inputs)),
        outputs=tuple(map(tensor_spec, model.graph.outputs)),
    )


def write_buckets(file: Path, variant: GraphVariant) -> None:
    """Write the graphs with fixed shapes that ``variant`` names beside the one they are made from."""
    for step in variant.steps:
        if step.file != file.name:
            assert variant.rows is not None
            sizes = {"N": step.width, "M": step.logit_rows, "S": variant.rows, "R": variant.rows}
            save_fixed(file, file.parent / step.file, sizes | {"T": variant.rows + step.width})
