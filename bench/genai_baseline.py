"""What the export benchmark compares with: onnxruntime-genai's own int4 build, on plain ONNX Runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.ort_session import SessionSettings, open_session
from acespec.errors import AcespecError
from acespec.models.manifest import BundleManifest


def build_genai_model(packages: Path, model_folder: Path, out: Path) -> Path:
    """Let onnxruntime-genai, installed in ``packages``, build the model in four bits. Returns the graph.

    Its builder chooses everything else itself. It runs in a process of its own, on this environment's PyTorch
    and Transformers. Raises ``AcespecError`` when it is missing or fails.
    """
    if not (packages / "onnxruntime_genai" / "models" / "builder.py").is_file():
        raise AcespecError(
            f"onnxruntime-genai, which is measured against, is not in {packages}; run: make bench-export"
        )
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(model_folder)]
    command += ["-o", str(out), "-p", "int4", "-e", "cpu", "-c", str(out / "cache")]
    built = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    graph = out / "model.onnx"
    if built.returncode != 0 or not graph.is_file():
        last = (built.stdout.strip().splitlines() or ["it says nothing"])[-1]
        raise AcespecError(
            f"onnxruntime-genai could not build {model_folder.name} ({last}); see its requirements"
        )
    return graph


class GenaiSteps:
    """Steps of genai's graph after ``context`` tokens, in the same session settings as ours.

    Everything is bound once: its rows in place, its logits to memory that stays. What its own runtime adds to
    a step is not counted.
    """

    def __init__(
        self,
        graph: Path,
        model: BundleManifest,
        widths: Sequence[int],
        context: int,
        settings: SessionSettings,
    ) -> None:
        """``model`` is the manifest of a bundle of the same model."""
        self._session = open_session(graph, settings)
        self._names = [spec.name for spec in self._session.get_inputs()]
        self._vocab_size = model.vocab_size
        self._arrays: list[NDArray[Any]] = []
        """Keeps what is bound by address."""
        rows = (1, model.num_kv_heads, 2 * context, model.head_dim)
        generator = np.random.default_rng(0)
        buffers = {
            name: self._keep(generator.standard_normal(rows, np.float32))
            for name in self._names
            if name.startswith("past_key_values.")
        }
        self._bindings = {width: self._bind(width, context, buffers) for width in widths}

    def step(self, width: int) -> None:
        """Run ``width`` tokens behind the context."""
        self._session.run_with_iobinding(self._bindings[width])

    def _keep(self, array: NDArray[Any]) -> NDArray[Any]:
        self._arrays.append(array)
        return array

    def _bind(self, width: int, context: int, buffers: dict[str, NDArray[Any]]) -> ort.IOBinding:
        inputs = {
            "input_ids": np.arange(5, 5 + width)[None],
            "attention_mask": np.ones((1, context + width), np.int64),
            "position_ids": np.arange(context, context + width)[None],
        }
        outputs = {_present_name(name): array for name, array in buffers.items()}
        outputs["logits"] = self._keep(np.empty((1, width, self._vocab_size), np.float32))
        binding = self._session.io_binding()
        for name, array in (inputs | buffers).items():
            if name in self._names:
                kept = self._keep(array)
                binding.bind_input(name, "cpu", 0, kept.dtype.type, kept.shape, kept.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding


def _present_name(past: str) -> str:
    """Where a layer's rows come out: ``present.0.key`` for ``past_key_values.0.key``."""
    return re.sub(r"^past_key_values", "present", past)
