"""The export itself: a model folder in, a checked bundle out."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from acespec.errors import AcespecError
from acespec.export.check import GraphRunner, Probe, branching_probe, compare_logits, torch_logits
from acespec.export.graph import OPSET, interface, save_graph, trace_graph
from acespec.models.chat import ChatTemplate, load_chat_template
from acespec.models.exportable import ExportableDecoder, load_decoder
from acespec.models.fingerprint import model_fingerprint
from acespec.models.manifest import (
    MANIFEST_FILE,
    Bundle,
    BundleManifest,
    GraphVariant,
    file_sha256,
    load_bundle,
    write_manifest,
)
from acespec.models.vocabulary import end_token_ids, load_tokenizer, vocabulary_hash, vocabulary_size

logger = logging.getLogger(__name__)

Progress = Callable[[str], object]
"""Told what the export does next."""

DEFAULT_BUCKETS = (1, 8, 16, 32)
DEFAULT_CONTEXT = 2048
GRAPH_FILE = "portable.onnx"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
PROBE_TOKENS = 24


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
    positions the model knows. Raises ``AcespecError``: `UnsupportedModelError`, `ExportShapeError`,
    `ExportToleranceError`, or one that names the argument or file at fault.
    """
    widths = checked_buckets(buckets)
    if context < 1:
        raise AcespecError(f"the context must be at least 1, not {context}")
    with replaced_folder(out) as folder:
        progress("loading the model")
        model = load_decoder(model_folder)
        manifest = _write_files(model, model_folder, folder, widths, precision, context, progress)
        write_manifest(folder, manifest)
    return load_bundle(out)


def _write_files(
    model: PreTrainedModel,
    model_folder: Path,
    folder: Path,
    buckets: tuple[int, ...],
    precision: str,
    context: int,
    progress: Progress,
) -> BundleManifest:
    """Write everything but the manifest into ``folder`` and return the manifest."""
    vocab_size, template = _write_texts(model_folder, folder)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or context

    progress("running PyTorch as the reference")
    probe = random_probe(vocab_size)
    expected = torch_logits(model, probe, vocab_size)

    progress("tracing the graph")
    decoder = ExportableDecoder(model, vocab_size)
    inputs, outputs = interface(decoder.shape, vocab_size)
    graph = folder / GRAPH_FILE
    weights = save_graph(trace_graph(decoder), graph)

    progress("checking the graph against PyTorch")
    half = probe.count // 2
    actual = GraphRunner(graph, inputs).logits(probe, (half, probe.count - half - 1, 1))
    difference = compare_logits(actual, expected, graph)
    progress(f"logits differ from PyTorch's by at most {difference:.1e}")

    progress("hashing the files")
    names = [TOKENIZER_FILE, graph.name, weights.name] + ([TEMPLATE_FILE] if template else [])
    return BundleManifest(
        model_name=model_folder.name,
        source_fingerprint=model_fingerprint(model_folder),
        vocabulary_hash=vocabulary_hash(model_folder / TOKENIZER_FILE),
        vocab_size=vocab_size,
        end_token_ids=end_token_ids(model_folder),
        bos_token=template.bos_token if template else None,
        eos_token=template.eos_token if template else None,
        tokenizer_file=TOKENIZER_FILE,
        chat_template_file=TEMPLATE_FILE if template else None,
        num_layers=decoder.shape.num_layers,
        num_kv_heads=decoder.shape.num_kv_heads,
        head_dim=decoder.shape.head_dim,
        max_context=min(context, positions),
        precision=precision,
        graphs=(
            GraphVariant(
                name="portable",
                opset=OPSET,
                bucket_files=dict.fromkeys(buckets, graph.name),
                inputs=inputs,
                outputs=outputs,
            ),
        ),
        file_sha256={name: file_sha256(folder / name) for name in names},
    )


def _write_texts(model_folder: Path, folder: Path) -> tuple[int, ChatTemplate | None]:
    """Copy tokenizer and chat template; returns the vocabulary's size and the template, if there is one."""
    vocab_size = vocabulary_size(load_tokenizer(model_folder / TOKENIZER_FILE))
    shutil.copyfile(model_folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    try:
        template = load_chat_template(model_folder)
    except AcespecError:
        return vocab_size, None
    (folder / TEMPLATE_FILE).write_text(template.template, encoding="utf-8")
    return vocab_size, template


def random_probe(vocab_size: int) -> Probe:
    """The probe every export is checked with: the same random tokens each time."""
    return branching_probe(np.random.default_rng(0).integers(0, vocab_size, PROBE_TOKENS))


def checked_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Bucket widths ascending. Raises ``AcespecError`` for widths no engine can have."""
    if not buckets or min(buckets) < 1 or max(buckets) > 1024:
        raise AcespecError(f"bucket widths must be between 1 and 1024, not {list(buckets)}")
    return tuple(sorted(set(buckets)))


@contextlib.contextmanager
def replaced_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``final`` that takes its place when the block succeeds.

    When it fails or is interrupted, ``final`` stays as it was and nothing is left behind. Raises
    ``AcespecError`` when ``final`` exists and is no bundle.
    """
    if final.exists() and not (final / MANIFEST_FILE).is_file() and not _is_empty_folder(final):
        raise AcespecError(f"{final} exists and is not a bundle; choose another folder or remove it")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
    except OSError as error:
        raise AcespecError(
            f"cannot write beside {final} ({error.strerror}); choose another folder"
        ) from error
    old = staging.with_name(f"{staging.name}.old")
    try:
        yield staging
        staging.chmod(0o755)  # mkdtemp closes its folders to other users
        if final.exists():
            final.rename(old)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
