"""The export itself: a model folder in, a checked bundle out."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from acespec.errors import AcespecError
from acespec.export.check import GraphRunner, branching_probe, causal_probe, compare_logits, torch_logits
from acespec.export.graph import OPSET, interface, save_graph, trace_graph, use_matrix_products
from acespec.export.options import DEFAULT_BUCKETS, DEFAULT_CONTEXT, ExportOptions, parse_precision
from acespec.export.quantize import quantize_decoder, quantize_graph
from acespec.export.staging import replaced_bundle
from acespec.models.chat import ChatTemplate, load_chat_template
from acespec.models.exportable import DecoderShape, ExportableDecoder, load_decoder
from acespec.models.files import sha256_of
from acespec.models.fingerprint import model_fingerprint
from acespec.models.manifest import (
    AttentionMask,
    Bundle,
    BundleManifest,
    GraphVariant,
    load_bundle,
    write_manifest,
)
from acespec.models.vocabulary import end_token_ids, load_tokenizer, vocabulary_hash, vocabulary_size

logger = logging.getLogger(__name__)

Progress = Callable[[str], object]
"""Told, in a few words, what the export does next or found out."""

GRAPH_FILE = "portable.onnx"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
PROBE_TOKENS = 24
SAMPLE_TEXT = """The lighthouse stood on a rock two miles from the shore. Every evening, when the sun
went down, the keeper climbed one hundred and twelve steps, cleaned the glass and lit the lamp. In winter the
waves reached the windows of the kitchen, and for days no boat could land. He read, he repaired his nets, and
he wrote down the weather three times a day: the wind, the height of the sea, the pressure of the air."""


@dataclass(frozen=True)
class Texts:
    """What a bundle needs to turn text into tokens and back."""

    vocab_size: int
    template: ChatTemplate | None
    sample_ids: list[int]


@dataclass(frozen=True)
class WrittenGraph:
    """A graph that was written and passed its check."""

    shape: DecoderShape
    variant: GraphVariant


def export_bundle(
    model_folder: Path,
    out: Path,
    *,
    buckets: Sequence[int] = DEFAULT_BUCKETS,
    precision: str = "fp32",
    context: int = DEFAULT_CONTEXT,
    progress: Progress = logger.info,
) -> Bundle:
    """Export the model in ``model_folder`` as a bundle at ``out`` and check it against PyTorch.

    ``out`` appears whole or not at all; a bundle that stands there is replaced. ``context`` is cut to the
    positions the model knows. Raises ``AcespecError``: `UnsupportedModelError`, `ExportError`,
    `ExportShapeError`, `ExportToleranceError`, or one that names the argument or file at fault.
    """
    options = ExportOptions(tuple(buckets), context, precision=parse_precision(precision))
    with replaced_bundle(out) as folder:
        texts = _write_texts(model_folder, folder)
        progress("loading the model")
        model = load_decoder(model_folder)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or context
        max_context = min(context, positions)
        graph = _write_graph(model, folder, texts, max_context, options, progress)
        progress("hashing the files")
        manifest = BundleManifest(
            model_name=model_folder.name,
            source_fingerprint=model_fingerprint(model_folder),
            vocabulary_hash=vocabulary_hash(model_folder / TOKENIZER_FILE),
            vocab_size=texts.vocab_size,
            end_token_ids=end_token_ids(model_folder),
            bos_token=texts.template.bos_token if texts.template else None,
            eos_token=texts.template.eos_token if texts.template else None,
            tokenizer_file=TOKENIZER_FILE,
            chat_template_file=TEMPLATE_FILE if texts.template else None,
            num_layers=graph.shape.num_layers,
            num_kv_heads=graph.shape.num_kv_heads,
            head_dim=graph.shape.head_dim,
            max_context=max_context,
            precision=options.precision,
            quantization=options.quantization,
            graphs=(graph.variant,),
            file_sha256={file.name: sha256_of(file) for file in sorted(folder.iterdir())},
        )
        write_manifest(folder, manifest)
    return load_bundle(out)


def _write_texts(model_folder: Path, folder: Path) -> Texts:
    """Copy the tokenizer and, if the model has one, the chat template."""
    tokenizer = load_tokenizer(model_folder / TOKENIZER_FILE)
    shutil.copyfile(model_folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    template: ChatTemplate | None = None
    with contextlib.suppress(AcespecError):  # not every model is made for chat
        template = load_chat_template(model_folder)
    if template is not None:
        (folder / TEMPLATE_FILE).write_text(template.template, encoding="utf-8")
    return Texts(vocabulary_size(tokenizer), template, tokenizer.encode(SAMPLE_TEXT).ids)


def _write_graph(
    model: PreTrainedModel,
    folder: Path,
    texts: Texts,
    max_context: int,
    options: ExportOptions,
    progress: Progress,
) -> WrittenGraph:
    """Trace, quantise, write and check the portable graph."""
    vocab_size = texts.vocab_size
    decoder = ExportableDecoder(model, vocab_size)
    probe = branching_probe(np.resize(texts.sample_ids, PROBE_TOKENS))
    sample = causal_probe(texts.sample_ids[:max_context])
    progress("running PyTorch, the reference")
    expected = torch_logits(model, probe, vocab_size)
    likeliest = torch_logits(model, sample, vocab_size).argmax(axis=1)

    use_matrix_products(decoder)
    matrices = {}
    if options.precision != "fp32":
        progress(f"quantising the weights to {options.precision}")
        matrices = quantize_decoder(decoder, options.precision)
        expected = torch_logits(model, probe, vocab_size)

    progress("tracing the graph")
    traced = trace_graph(decoder)
    quantize_graph(traced, matrices)
    file = folder / GRAPH_FILE
    save_graph(traced, file)

    progress("checking the graph against PyTorch")
    inputs, outputs = interface(decoder.shape, vocab_size)
    prefix = probe.count // 2
    actual = GraphRunner(file, inputs).logits(probe, (prefix, probe.count - prefix - 1, 1))
    difference = compare_logits(actual, expected, file)
    progress(f"its logits differ from PyTorch's by at most {difference:.1e}")
    if matrices:
        quick = GraphRunner(file, inputs, accuracy_level=4).logits(sample, (sample.count,)).argmax(axis=1)
        share = float(np.mean(quick == likeliest))
        progress(f"its likeliest token is the full model's at {share:.0%} of {sample.count} positions")
    variant = GraphVariant(
        name="portable",
        opset=OPSET,
        bucket_files=dict.fromkeys(options.buckets, file.name),
        masks=(AttentionMask(name="mask"),),
        inputs=inputs,
        outputs=outputs,
    )
    return WrittenGraph(decoder.shape, variant)
