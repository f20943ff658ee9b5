"""A draft engine on ONNX Runtime (CPU): runs a bundle's portable graph over rows held in place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.kv_buffer import KvBuffer
from acespec.errors import AcespecError
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec

logger = logging.getLogger(__name__)

MASKED = np.float32(-1e4)
"""Added to a score that must not count. Finite, so that a row that attends to nothing stays finite."""


class EngineError(AcespecError):
    """A bundle's graph cannot be run here."""


class OnnxRuntimeEngine:
    """`DraftEngine` over a bundle's portable graph.

    A step of n tokens runs at the smallest bucket N >= n. Its N new rows are written by the graph straight
    behind the rows in use; only the first n of them are taken into use, the next step overwrites the others.
    """

    def __init__(
        self,
        bundle: Bundle,
        threads: int = 1,
        tree_rows: int = 512,
        max_context: int | None = None,
        accuracy_level: int = 4,
    ) -> None:
        """``tree_rows`` is room beyond ``max_context`` rows; ``max_context`` lowers the bundle's.

        ``accuracy_level`` concerns int4 weights only: 4 multiplies in int8, the fastest; 1 in float32.
        Raises `EngineError` when the graph does not load or is not what the manifest says.
        """
        manifest = bundle.manifest
        variant = bundle.graph("portable")
        self._buckets = variant.buckets
        self._max_context = min(manifest.max_context, max_context or manifest.max_context)
        self._vocab_size = manifest.vocab_size
        self._row_shape = (manifest.num_kv_heads, manifest.head_dim)
        self._rows = KvBuffer(
            2 * manifest.num_layers, self._max_context + tree_rows, self._buckets[-1], self._row_shape
        )
        self._past_names = [spec.name for spec in variant.inputs if spec.name.startswith("past_")]
        self._new_names = [spec.name for spec in variant.outputs if spec.name.startswith("new_")]
        assert len(self._past_names) == len(self._new_names) == 2 * manifest.num_layers

        sessions: dict[str, ort.InferenceSession] = {}
        for file_name in dict.fromkeys(variant.bucket_files.values()):
            path = bundle.path(file_name)
            sessions[file_name] = open_session(path, threads, accuracy_level)
            check_interface(path, sessions[file_name], variant)
        self._sessions = {width: sessions[file_name] for width, file_name in variant.bucket_files.items()}
        self._bindings = {width: session.io_binding() for width, session in self._sessions.items()}

        widest = self._buckets[-1]
        self._tokens = np.zeros((1, widest), np.int64)
        self._positions = np.zeros((1, widest), np.int64)
        self._mask = np.zeros(widest * (self._rows.max_rows + widest), np.float32)
        self._logits = np.zeros((widest, self._vocab_size), np.float32)

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def max_rows(self) -> int:
        return self._rows.max_rows

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def forward(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Run one step; see `DraftEngine.forward`."""
        count = len(tokens)
        past = self._rows.num_rows
        assert 1 <= count <= min(self._buckets[-1], self._rows.max_rows - past), (count, past)
        assert positions.shape == (count,), positions.shape
        assert mask.shape == (count, past + count), mask.shape
        assert 0 <= positions.min() <= positions.max() < self._max_context, positions
        width = next(bucket for bucket in self._buckets if bucket >= count)

        self._tokens[0, :count] = tokens
        self._tokens[0, count:width] = 0
        self._positions[0, :count] = positions
        self._positions[0, count:width] = 0
        additive = self._mask[: width * (past + width)].reshape(width, past + width)
        additive.fill(MASKED)
        np.copyto(additive[:count, : past + count], np.float32(0), where=mask)

        self._bind(width, past)
        self._sessions[width].run_with_iobinding(self._bindings[width])
        self._rows.append(count)
        return self._logits[:count]

    def _bind(self, width: int, past: int) -> None:
        """Tell ONNX Runtime where this step's inputs lie and its outputs go: nothing is copied."""
        binding = self._bindings[width]
        bind_input, bind_output = binding.bind_input, binding.bind_output
        bind_input("input_ids", "cpu", 0, np.int64, (1, width), self._tokens.ctypes.data)
        bind_input("position_ids", "cpu", 0, np.int64, (1, width), self._positions.ctypes.data)
        bind_input("mask", "cpu", 0, np.float32, (1, 1, width, past + width), self._mask.ctypes.data)
        bind_output("logits", "cpu", 0, np.float32, (1, width, self._vocab_size), self._logits.ctypes.data)
        past_shape, new_shape = (past, *self._row_shape), (width, *self._row_shape)
        for tensor, (past_name, new_name) in enumerate(zip(self._past_names, self._new_names, strict=True)):
            bind_input(past_name, "cpu", 0, np.float32, past_shape, self._rows.address(tensor, 0))
            bind_output(new_name, "cpu", 0, np.float32, new_shape, self._rows.address(tensor, past))

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        self._rows.compact(prefix, rows)

    def truncate(self, num_rows: int) -> None:
        self._rows.truncate(num_rows)


def open_session(path: Path, threads: int, accuracy_level: int) -> ort.InferenceSession:
    """An ONNX Runtime session of ``threads`` threads that do not spin while they wait."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A pattern is kept for every shape seen, and the past grows by the step: it would only ever leak.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(accuracy_level))
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no narrower base
        cause = " ".join(str(error).split())
        raise EngineError(f"ONNX Runtime cannot load {path} ({cause}); export the bundle again") from None


def check_interface(path: Path, session: ort.InferenceSession, variant: GraphVariant) -> None:
    """Raise `EngineError` unless the graph's inputs and outputs are the manifest's."""
    for kind, actual, expected in (
        ("input", session.get_inputs(), variant.inputs),
        ("output", session.get_outputs(), variant.outputs),
    ):
        found = {spec.name: spec for spec in map(_tensor_spec, actual)}
        for spec in expected:
            if found.pop(spec.name, None) != spec:
                raise EngineError(f"{path} has no {kind} {spec}; export the bundle again")
        if found:
            raise EngineError(f"{path} has unexpected {kind}s {sorted(found)}; export the bundle again")


def _tensor_spec(argument: ort.NodeArg) -> TensorSpec:
    dtype = argument.type.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(name=argument.name, dtype=dtype, shape=tuple(argument.shape))
