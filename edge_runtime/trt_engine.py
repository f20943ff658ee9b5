"""A draft engine on TensorRT: static memory, rows in place, one CUDA graph a step width. No torch."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.additive_mask import write_additive_mask
from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.build_monitor import Progress
from acespec.edge_runtime.cuda import Cuda, aligned, load_cuda
from acespec.edge_runtime.device_buffers import DeviceBuffers, allocate
from acespec.edge_runtime.device_rows import DeviceRows, RowLayout
from acespec.edge_runtime.engine import check_step
from acespec.edge_runtime.plan_builder import BuildTarget, PlanBuilder
from acespec.edge_runtime.plan_files import PlanFolder, engines_folder
from acespec.edge_runtime.plan_key import PlanKey, StepShape, dimensions, shape_at
from acespec.edge_runtime.trt_loader import ROW_PREFIXES, StepLoader
from acespec.edge_runtime.trt_module import TensorRtError, TensorRtRuntime, load_tensorrt
from acespec.edge_runtime.trt_step import BoundStep
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec
from acespec.speculation import DraftLogits

logger = logging.getLogger(__name__)


def open_tensorrt_engine(
    bundle: Bundle,
    runtime: TensorRtRuntime = "tensorrt",
    engines: Path | None = None,
    max_context: int | None = None,
    use_graphs: bool = True,
    progress: Progress = logger.info,
) -> TensorRtEngine:
    """The bundle's engine on this machine's device, its plans built first where they are not there.

    ``engines`` holds the plans; by default what `engines_folder` says. Raises `TensorRtError` or `CudaError`.
    """
    tensorrt, cuda = load_tensorrt(runtime), load_cuda()
    target = BuildTarget(tensorrt, runtime, cuda.compute_capability())
    folder = PlanFolder(engines or engines_folder(bundle.folder))
    return TensorRtEngine(bundle, target, cuda, folder, max_context, use_graphs, progress)


class TensorRtEngine:
    """`DraftEngine` over the plans of a bundle. Close it, or use it in a ``with``, to free the device.

    A step of n tokens runs on the smallest bucket N >= n. Everything a step reads or writes stands at a fixed
    address: inputs are written to pinned memory, copied and run as one CUDA graph, and of the outputs only
    the rows asked for are copied back. Not for two threads at once.
    """

    def __init__(
        self,
        bundle: Bundle,
        target: BuildTarget,
        cuda: Cuda,
        folder: PlanFolder,
        max_context: int | None = None,
        use_graphs: bool = True,
        progress: Progress = logger.info,
    ) -> None:
        """``max_context`` lowers the bundle's; ``use_graphs`` False runs without CUDA graphs."""
        manifest = bundle.manifest
        self._variant, keys = target.plan_keys(bundle)
        check_manifest(bundle, self._variant)
        builder = PlanBuilder(bundle, target, folder, progress=progress)
        builder.build_missing(self._variant, keys)
        self._key = keys[0]
        self._is_native = self._key.graph == "native"
        self._buckets = self._variant.buckets
        shapes = [step for key in keys for step in key.steps]
        widest = max(shape.width for shape in shapes)
        # The native graph writes the padding of a step behind its rows: there must be room for it.
        self._max_rows = keys[0].rows - (widest - 1 if self._is_native else 0)
        self._max_context = min(manifest.max_context, max_context or manifest.max_context, self._max_rows)
        self._vocab_size = manifest.vocab_size
        self._specs = {spec.name: spec for spec in (*self._variant.inputs, *self._variant.outputs)}
        self._cuda = cuda
        with ExitStack() as stack:
            self._stream = cuda.create_stream()
            stack.callback(cuda.destroy_stream, self._stream)
            self._allocate(stack, keys)
            loader = StepLoader(
                target.tensorrt, cuda, self._stream, self._variant, self._buffers, self._addresses, use_graphs
            )
            # One plan at a time is in the host's memory: on a Jetson that is the device's.
            self._steps = loader.load(
                stack, ((key, builder.read_or_build(self._variant, key)) for key in keys)
            )
            cuda.synchronize(self._stream)
            # Also at exit, should nobody close it: TensorRT must go before CUDA does.
            self._release = weakref.finalize(self, stack.pop_all().close)

    def _allocate(self, stack: ExitStack, keys: Sequence[PlanKey]) -> None:
        """Make every buffer: inputs and outputs, the rows, and (portable) where a step leaves its rows."""
        largest: dict[str, int] = {}
        for key in keys:
            for step in key.steps:
                for name, spec in self._specs.items():
                    if not name.startswith(ROW_PREFIXES):
                        elements = math.prod(shape_at(spec, dimensions(key, step)))
                        largest[name] = max(elements, largest.get(name, 0))
        self._buffers = DeviceBuffers(self._cuda, stack, largest, self._specs)
        past = [spec for spec in self._variant.inputs if spec.name.startswith(ROW_PREFIXES)]
        layout = row_layout(past, keys[0].rows, self._is_native)
        address = allocate(self._cuda, stack, layout.total_bytes)
        self._rows = DeviceRows(self._cuda, self._stream, layout, address)
        self._addresses = dict(self._buffers.addresses)
        kinds = [spec.name.removeprefix("past_") for spec in past]
        self._addresses |= {f"past_{kind}": at for kind, at in zip(kinds, self._rows.addresses, strict=True)}
        if self._is_native:
            self._addresses |= {f"present_{kind}": self._addresses[f"past_{kind}"] for kind in kinds}
        else:
            widest = max(step.width for key in keys for step in key.steps)
            self._new_pitch = aligned(widest * layout.row_bytes)
            self._new_rows = allocate(self._cuda, stack, layout.tensors * self._new_pitch)
            self._addresses |= {
                f"new_{kind}": self._new_rows + index * self._new_pitch for index, kind in enumerate(kinds)
            }

    def close(self) -> None:
        """Wait for the device and free everything; logits given out are gone. Twice is once."""
        self._release()

    def __enter__(self) -> TensorRtEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def prefill_width(self) -> int:
        prefill = self._steps.prefill
        return self._buckets[-1] if prefill is None else prefill.shape.width

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def max_rows(self) -> int:
        return self._max_rows

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
        """Run one step; see `DraftEngine.forward`. Raises `TensorRtError` or `CudaError`."""
        assert self._release.alive, "the engine is closed"
        count = len(tokens)
        check_step(self, tokens, positions, mask)
        step = self._step_for(count, last_only)
        self._write_inputs(step.shape, tokens, positions, mask)
        step.run()
        first, rows = (count - 1, 1) if last_only else (0, count)
        logits = self._download(0 if step is self._steps.prefill else first, rows)
        if not self._is_native:
            self._rows.place(self._new_rows, self._new_pitch, count)
        self._cuda.synchronize(self._stream)
        self._rows.append(positions)
        return logits

    def _step_for(self, count: int, last_only: bool) -> BoundStep:
        """The narrowest step that takes ``count`` tokens."""
        prefill = self._steps.prefill
        if last_only and prefill is not None:
            assert count <= prefill.shape.width, count
            if count > self._buckets[-1] or bucket_for(count, self._buckets) == prefill.shape.width:
                return prefill
        assert count <= self._buckets[-1], count
        return self._steps.by_width[bucket_for(count, self._buckets)]

    def _write_inputs(
        self,
        shape: StepShape,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
    ) -> None:
        """Fill the pinned inputs; the device has read those of the step before."""
        count, past, width = len(tokens), self._rows.num_rows, shape.width
        for name, values in (("input_ids", tokens), ("position_ids", positions)):
            padded = self._buffers.host(name, (width,))
            padded[:count], padded[count:] = values, 0
        rows = self._buffers.host("logit_rows", (shape.logit_rows,))
        rows[:] = np.arange(width) if shape.logit_rows == width else count - 1
        if self._is_native:
            self._buffers.host("past_length", (1,))[:] = past
        # Past rows and the step's own follow each other in the native buffer, not in the portable graph.
        new_column = past if self._is_native else self._key.rows
        row_positions = np.concatenate([self._rows.positions[:past], positions])
        for attention in self._variant.masks:
            dims = shape_at(self._specs[attention.name], dimensions(self._key, shape))
            target = self._buffers.host(attention.name, dims)[0, 0]
            write_additive_mask(target, mask, row_positions, new_column, attention.window)

    def _download(self, first: int, rows: int) -> DraftLogits:
        """Have the logits of ``rows`` rows copied to the host; they may be read once the stream is idle."""

        def output(name: str, row_size: int) -> NDArray[Any]:
            return self._buffers.download(name, first, rows, row_size, self._stream)

        top_k = self._variant.top_k
        if top_k is None:
            return DraftLogits(output("logits", self._vocab_size))
        values, ids = output("top_logits", top_k), output("top_ids", top_k)
        return DraftLogits(values, ids, output("log_sum_exp", 1)[:, 0])

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        """Keep rows; see `DraftEngine.compact`. The device does it before the next step."""
        assert self._release.alive, "the engine is closed"
        self._rows.compact(prefix, rows)

    def truncate(self, num_rows: int) -> None:
        self._rows.truncate(num_rows)


def check_manifest(bundle: Bundle, variant: GraphVariant) -> None:
    """Raise `TensorRtError` unless the graph has the layers and widths that the manifest states."""
    manifest = bundle.manifest
    past = [spec.shape for spec in variant.inputs if spec.name.startswith(ROW_PREFIXES)]
    logits = [spec.shape[-1] for spec in variant.outputs if spec.name == "logits"]
    if (
        len(past) != 2 * manifest.num_layers
        or any((shape[1], shape[-1]) != (manifest.num_kv_heads, manifest.head_dim) for shape in past)
        or (variant.top_k is None and logits != [manifest.vocab_size])
    ):
        raise TensorRtError(
            f"the manifest of {bundle.folder} contradicts itself: its graph's interface is not that of "
            f"{manifest.num_layers} layers with rows of {manifest.num_kv_heads} x {manifest.head_dim} "
            f"and {manifest.vocab_size} logits; export the bundle again"
        )


def row_layout(past: Sequence[TensorSpec], rows: int, is_native: bool) -> RowLayout:
    """How the rows of ``past`` tensors lie: ``[S, KVH, D]``, native ``[1, KVH, R, D]``."""
    shape = past[0].shape
    heads, head_dim = int(shape[1]), int(shape[-1])
    size = past[0].element_bytes
    if is_native:
        return RowLayout(len(past), heads, rows, head_dim * size)
    return RowLayout(len(past), 1, rows, heads * head_dim * size)
