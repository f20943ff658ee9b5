"""Tiny bundles for TensorRT, one of each kind, exported once a run; and a fake device to run them."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acespec.edge_runtime.cuda import Cuda
from acespec.edge_runtime.plan_builder import BuildTarget
from acespec.edge_runtime.plan_files import PlanFolder
from acespec.edge_runtime.trt_engine import TensorRtEngine
from acespec.export.bundle import export_bundle
from acespec.export.options import ExportOptions
from acespec.models.manifest import Bundle
from fake_cuda import FakeCuda
from fake_tensorrt import World, fake_tensorrt
from model_folder import tiny_tokenizer
from tiny_target import tiny_model

BUCKETS, CONTEXT, PREFILL, TREE_ROWS = (1, 4, 16), 96, 32, 64


@functools.cache
def trt_bundle(architecture: str = "llama", **options: Any) -> Bundle:
    """A tiny bundle with what ``options`` (of `ExportOptions`) ask for; gone when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="acespec-trt-")
    folders.append(folder)
    target = Path(folder.name) / f"tiny-{architecture}"
    tiny_model(architecture).save_pretrained(target)
    tiny_tokenizer().save(str(target / "tokenizer.json"))
    chosen = ExportOptions(
        BUCKETS, CONTEXT, prefill_chunk=PREFILL, tree_rows=TREE_ROWS, **{"graph": "portable"} | options
    )
    return export_bundle(target, Path(folder.name) / "bundle", chosen)


folders: list[tempfile.TemporaryDirectory[str]] = []
"""Keeps the folders until the process ends."""


@dataclass
class FakeDevice:
    """A machine with TensorRT and a GPU, neither of them real."""

    folder: PlanFolder
    cuda: FakeCuda
    world: World
    target: BuildTarget

    def engine(self, bundle: Bundle, **options: Any) -> TensorRtEngine:
        return TensorRtEngine(bundle, self.target, Cuda(self.cuda), self.folder, **options)


def fake_device(folder: Path, version: str = "10.3.0", capability: str = "8.7") -> FakeDevice:
    cuda = FakeCuda()
    module, world = fake_tensorrt(cuda, version)
    return FakeDevice(PlanFolder(folder), cuda, world, BuildTarget(module, "tensorrt", capability))
