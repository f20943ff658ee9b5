"""A machine with TensorRT and a GPU, neither of them real."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acespec.edge_runtime.cuda import Cuda
from acespec.edge_runtime.plan_builder import BuildTarget
from acespec.edge_runtime.plan_files import PlanFolder
from acespec.edge_runtime.trt_engine import TensorRtEngine
from acespec.models.manifest import Bundle
from fake_cuda import FakeCuda
from fake_tensorrt import World, fake_tensorrt


@dataclass
class FakeDevice:
    """The machine's parts, and engines on it."""

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
