"""A bundle of the tiny Llama, exported once for all tests of a run."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from acespec.export.bundle import export_bundle
from acespec.export.options import ExportOptions
from acespec.models.manifest import Bundle
from tiny_target import write_target_folder


@functools.cache
def tiny_bundle() -> Bundle:
    """Float32, buckets 1, 4 and 16; gone when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="acespec-tiny-")
    tiny_folders.append(folder)
    target = write_target_folder(Path(folder.name) / "tiny-llama")
    return export_bundle(
        target, Path(folder.name) / "bundle", ExportOptions((1, 4, 16), 96, prefill_chunk=32)
    )


tiny_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps the folders until the process ends."""
