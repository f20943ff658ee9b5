"""The export itself: a model folder in, a checked bundle out."""

from __future__ import annotations

import contextlib
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from acespec.errors import AcespecError
from acespec.export.options import ExportOptions
from acespec.export.smooth import calibration_tokens
from acespec.export.staging import replaced_bundle
from acespec.export.write import Progress, SampleTokens, write_graph
from acespec.models.chat import ChatTemplate, load_chat_template
from acespec.models.files import sha256_of
from acespec.models.fingerprint import model_fingerprint
from acespec.models.manifest import Bundle, BundleManifest, load_bundle, write_manifest
from acespec.models.vocabulary import end_token_ids, load_tokenizer, vocabulary_hash, vocabulary_size

logger = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
SAMPLE_TEXT = """The lighthouse stood on a rock two miles from the shore. Every evening, when the sun
went down, the keeper climbed one hundred and twelve steps, cleaned the glass and lit the lamp. In winter the
waves reached the windows of the kitchen, and for days no boat could land. He read, he repaired his nets, and
he wrote down the weather three times a day: the wind, the height of the sea, the pressure of the air."""


@dataclass(frozen=True)
class Texts:
    """What a bundle needs to turn text into tokens and back."""

    vocab_size: int
    template: ChatTemplate | None
    end_token_ids: tuple[int, ...]
    samples: SampleTokens


def export_bundle(
    model_folder: Path, out: Path, options: ExportOptions, progress: Progress = logger.info
) -> Bundle:
    """Export the model in ``model_folder`` as a bundle at ``out`` and check it against PyTorch.

    ``out`` appears whole or not at all; a bundle that stands there is replaced. The context is cut to the
    positions the model knows. Raises ``AcespecError``: `UnsupportedModelError`, `ExportError`,
    `ExportShapeError`, `ExportToleranceError`, or one that names the argument or file at fault.
    """
    with replaced_bundle(out) as folder:
        texts = _write_texts(model_folder, folder)
        written = write_graph(model_folder, folder, texts.samples, texts.vocab_size, options, progress)
        progress("hashing the files")
        manifest = BundleManifest(
            model_name=model_folder.name,
            source_fingerprint=model_fingerprint(model_folder),
            vocabulary_hash=vocabulary_hash(model_folder / TOKENIZER_FILE),
            vocab_size=texts.vocab_size,
            end_token_ids=texts.end_token_ids,
            bos_token=texts.template.bos_token if texts.template else None,
            eos_token=texts.template.eos_token if texts.template else None,
            tokenizer_file=TOKENIZER_FILE,
            chat_template_file=TEMPLATE_FILE if texts.template else None,
            num_layers=written.shape.num_layers,
            num_kv_heads=written.shape.num_kv_heads,
            head_dim=written.shape.head_dim,
            max_context=written.context,
            precision=options.precision,
            quantization=options.quantization,
            graphs=(written.variant,),
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
    samples = SampleTokens(tokenizer.encode(SAMPLE_TEXT).ids, calibration_tokens(tokenizer, template))
    return Texts(vocabulary_size(tokenizer), template, end_token_ids(model_folder), samples)
