"""A draft engine on ONNX Runtime (CPU): runs a bundle's portable graph over rows held in place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.kv_buffer import KvBuffer
from acespec.errors import AcespecError
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec
from acespec.speculation import DraftLogits

logger = logging.getLogger(__name__)

MASKED = np.float32(-1e4)
"""Added to a score that must not count. Finite, so that a row that attends to nothing stays finite."""


class EngineError(AcespecError):
    """A bundle's graph cannot be run here."""


@dataclass(frozen=True)
class BucketStep:
    """What a step at one bucket's width runs on. Everything but the past and the mask is bound once."""

    session: ort.InferenceSession
    binding: ort.IOBinding
    new_rows: NDArray[np.float32]  # [2 * layers, N, KVH, D], where the graph leaves them


class OnnxRuntimeEngine:
    """`DraftEngine` over a bundle's portable graph.

    A step of n tokens runs at the smallest bucket N >= n. The past is read in place; of the N new rows the
    first n are copied behind it, which is cheaper than telling ONNX Runtime of every layer's place each step.
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

        ``accuracy_level`` concerns int4 and int8 weights only: 4 (fastest) multiplies in int8, 1 in float32.
        Raises `EngineError` when the graph does not load or is not what the manifest says.
        """
        manifest = bundle.manifest
        warn_without_kernel(manifest.precision)
        variant = bundle.graph("portable")
        self._buckets = variant.buckets
        self._max_context = min(manifest.max_context, max_context or manifest.max_context)
        self._vocab_size = manifest.vocab_size
        self._row_shape = (manifest.num_kv_heads, manifest.head_dim)
        check_shapes(bundle, variant)
        try:
            self._allocate(2 * manifest.num_layers, self._max_context + tree_rows)
        except MemoryError as error:
            raise EngineError(
                f"there is no memory for the {self._max_context} positions of {bundle.folder} ({error}); "
                "export it again with a smaller --context"
            ) from None

        past_names = [spec.name for spec in variant.inputs if spec.name.startswith("past_")]
        self._past_bindings = list(zip(past_names, self._rows.past_addresses, strict=True))
        new_names = [spec.name for spec in variant.outputs if spec.name.startswith("new_")]
        sessions: dict[str, ort.InferenceSession] = {}
        self._steps: dict[int, BucketStep] = {}
        for width, file_name in variant.bucket_files.items():
            if file_name not in sessions:
                path = bundle.path(file_name)
                sessions[file_name] = open_session(path, threads, accuracy_level)
                check_interface(path, sessions[file_name], variant)
            self._steps[width] = self._prepare_step(width, sessions[file_name], new_names)

    def _allocate(self, num_tensors: int, max_rows: int) -> None:
        """Make every buffer whose place the graph is told."""
        self._rows = KvBuffer(num_tensors, max_rows, self._row_shape)
        widest = self._buckets[-1]
        self._tokens = np.zeros((1, widest), np.int64)
        self._positions = np.zeros((1, widest), np.int64)
        self._all_rows = np.arange(widest)
        self._last_row = np.zeros(1, np.int64)
        self._mask = np.zeros(widest * (1 + max_rows + widest), np.float32)
        self._mask_address = self._mask.ctypes.data
        self._logits = np.zeros((widest, self._vocab_size), np.float32)

    def _prepare_step(self, width: int, session: ort.InferenceSession, new_names: list[str]) -> BucketStep:
        binding = session.io_binding()
        new_rows = np.zeros((len(new_names), width, *self._row_shape), np.float32)
        binding.bind_input("input_ids", "cpu", 0, np.int64, (1, width), self._tokens.ctypes.data)
        binding.bind_input("position_ids", "cpu", 0, np.int64, (1, width), self._positions.ctypes.data)
        for name, rows in zip(new_names, new_rows, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, rows.shape, rows.ctypes.data)
        return BucketStep(session, binding, new_rows)

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def prefill_width(self) -> int:
        return self._buckets[-1]

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
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        """Run one step; see `DraftEngine.forward`."""
        count = len(tokens)
        past = self._rows.num_rows
        assert 1 <= count <= min(self._buckets[-1], self._rows.max_rows - past), (count, past)
        assert positions.shape == (count,), positions.shape
        assert mask.shape == (count, past + count), mask.shape
        assert 0 <= positions.min() <= positions.max() < self._max_context, positions
        width = bucket_for(count, self._buckets)

        self._tokens[0, :count] = tokens
        self._tokens[0, count:width] = 0
        self._positions[0, :count] = positions
        self._positions[0, count:width] = 0
        columns = 1 + past + width  # the buffer's row of zeros, the past, this step
        additive = self._mask[: width * columns].reshape(width, columns)
        additive.fill(MASKED)
        np.copyto(additive[:count, 1 : 1 + past + count], np.float32(0), where=mask)

        step = self._steps[width]
        bind_input = step.binding.bind_input
        self._last_row[0] = count - 1
        wanted = self._last_row if last_only else self._all_rows[:width]
        bind_input("logit_rows", "cpu", 0, np.int64, wanted.shape, wanted.ctypes.data)
        logits_shape = (1, len(wanted), self._vocab_size)
        step.binding.bind_output("logits", "cpu", 0, np.float32, logits_shape, self._logits.ctypes.data)
        bind_input("mask", "cpu", 0, np.float32, (1, 1, width, columns), self._mask_address)
        past_shape = (1 + past, *self._row_shape)
        for name, address in self._past_bindings:
            bind_input(name, "cpu", 0, np.float32, past_shape, address)
        step.session.run_with_iobinding(step.binding)
        self._rows.append(step.new_rows[:, :count])
        return DraftLogits(self._logits[:1] if last_only else self._logits[:count])

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        self._rows.compact(prefix, rows)

    def truncate(self, num_rows: int) -> None:
        self._rows.truncate(num_rows)


def warn_without_kernel(precision: str, version: str = ort.__version__) -> None:
    """Warn when this ONNX Runtime unpacks eight-bit weights at every step instead of multiplying by them."""
    if precision != "fp32" and tuple(map(int, version.split(".")[:2])) < (1, 25):
        logger.warning(
            "onnxruntime %s has no kernel for 8-bit weights, %s bundles run slower than fp32 ones; "
            "install onnxruntime 1.25 or later (it needs Python 3.11), or export with --precision fp32",
            version,
            precision,
        )


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


def check_shapes(bundle: Bundle, variant: GraphVariant) -> None:
    """Raise `EngineError` unless the interface has the layers and widths that the manifest states.

    Buffers are made by those numbers and bound by address: they must not be wrong.
    """
    manifest = bundle.manifest
    past = [spec.shape for spec in variant.inputs if spec.name.startswith("past_")]
    new = [spec.shape for spec in variant.outputs if spec.name.startswith("new_")]
    logits = [spec.shape for spec in variant.outputs if spec.name == "logits"]
    row_shape = (manifest.num_kv_heads, manifest.head_dim)
    if (
        len(past) != 2 * manifest.num_layers
        or len(new) != len(past)
        or any(shape[1:] != row_shape for shape in past + new)
        or [shape[-1:] for shape in logits] != [(manifest.vocab_size,)]
    ):
        raise EngineError(
            f"the manifest of {bundle.folder} contradicts itself: its graph's interface is not that of "
            f"{manifest.num_layers} layers with rows of {row_shape} and {manifest.vocab_size} logits; "
            "export the bundle again"
        )


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
