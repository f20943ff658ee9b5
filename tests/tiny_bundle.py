"""Bundles of tiny models, each exported once for all tests of a run."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from acespec.export.bundle import export_bundle
from acespec.export.options import ExportOptions
from acespec.models.manifest import Bundle
from model_folder import tiny_tokenizer
from tiny_families import NAMED
from tiny_target import tiny_model

BUCKETS, CONTEXT, PREFILL, TREE_ROWS = (1, 4, 16), 96, 32, 64


@functools.cache
def tiny_decoder(family: str = "llama") -> PreTrainedModel:
    """The plain Llama, or a model of `NAMED`."""
    return tiny_model() if family == "llama" else NAMED[family]()


def tiny_bundle(family: str = "llama", **options: Any) -> Bundle:
    """A bundle of the sizes above; float32 and the portable graph unless ``options`` say otherwise.

    Gone when the process ends.
    """
    return _exported(family, ExportOptions(BUCKETS, CONTEXT, PREFILL, TREE_ROWS, **options))


@functools.cache
def _exported(family: str, options: ExportOptions) -> Bundle:
    folder = tempfile.TemporaryDirectory(prefix="acespec-tiny-")
    tiny_folders.append(folder)
    source = Path(folder.name) / "tiny-llama"
    tiny_decoder(family).save_pretrained(source)
    tiny_tokenizer().save(str(source / "tokenizer.json"))
    return export_bundle(source, Path(folder.name) / "bundle", options)


tiny_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps the folders until the process ends."""
