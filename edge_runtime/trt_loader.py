"""From plans to steps that can run: engines, contexts that share scratch memory, and every address bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acespec.edge_runtime.cuda import Cuda
from acespec.edge_runtime.device_buffers import DeviceBuffers, allocate
from acespec.edge_runtime.plan_builder import tensor_type
from acespec.edge_runtime.plan_key import PlanKey, dimensions, shape_at
from acespec.edge_runtime.trt_module import TensorRtError, TensorRtModule, message_logger
from acespec.edge_runtime.trt_step import BoundStep, Upload
from acespec.models.manifest import GraphVariant

if TYPE_CHECKING:
    import tensorrt as trt

ROW_PREFIXES = ("past_key.", "past_value.", "new_key.", "new_value.", "present_key.", "present_value.")
"""Of the tensors that hold rows of keys and values."""
REBUILD = "build the plans again with: acespec engine build BUNDLE --force"


@dataclass(frozen=True)
class LoadedSteps:
    """The steps an engine can run."""

    by_width: dict[int, BoundStep]
    prefill: BoundStep | None


class StepLoader:
    """Loads the plans of one graph."""

    def __init__(
        self,
        tensorrt: TensorRtModule,
        cuda: Cuda,
        stream: Any,
        variant: GraphVariant,
        buffers: DeviceBuffers,
        addresses: Mapping[str, int],
        use_graphs: bool,
    ) -> None:
        """``addresses`` says where each tensor lies on the device, ``buffers`` where inputs are filled."""
        self._tensorrt = tensorrt
        self._cuda = cuda
        self._stream = stream
        self._variant = variant
        self._specs = {spec.name: spec for spec in (*variant.inputs, *variant.outputs)}
        self._buffers = buffers
        self._addresses = addresses
        self._use_graphs = use_graphs
        self._complaints: deque[str] = deque(maxlen=3)
        self._logger = message_logger(tensorrt, self._complaints.append)

    def load(self, stack: ExitStack, plans: Iterable[tuple[PlanKey, bytes]]) -> LoadedSteps:
        """A step for each profile of each plan. ``stack`` frees them, contexts before what they work in.

        One runs at a time, so that all work in the same scratch memory, as large as the hungriest wants it.
        Raises `TensorRtError` or `CudaError`.
        """
        runtime = self._tensorrt.Runtime(self._logger)
        engines = [(self._engine(runtime, key, plan), key) for key, plan in plans]
        sizes = [
            engine.get_device_memory_size_for_profile_v2(profile)
            for engine, key in engines
            for profile in range(len(key.steps))
        ]
        scratch = allocate(self._cuda, stack, max(1, *sizes))
        by_width: dict[int, BoundStep] = {}
        prefill: BoundStep | None = None
        for engine, key in engines:
            for profile, shape in enumerate(key.steps):
                step = self._bound_step(engine, key, profile, scratch)
                stack.callback(step.close)
                if shape.logit_rows == shape.width:
                    by_width[shape.width] = step
                else:
                    prefill = step
        return LoadedSteps(by_width, prefill)

    def _engine(self, runtime: trt.Runtime, key: PlanKey, plan: bytes) -> trt.ICudaEngine:
        """Load a plan, and see that its tensors are the manifest's: all are bound by address."""
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise self._refused(f"the plan of {key.graph_file}")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = {spec.name for spec in self._variant.inputs}
        mode = self._tensorrt.TensorIOMode
        if (
            set(names) != self._specs.keys()
            or engine.num_optimization_profiles != len(key.steps)
            or any(
                engine.get_tensor_mode(name) != (mode.INPUT if name in inputs else mode.OUTPUT)
                or engine.get_tensor_dtype(name) != tensor_type(self._tensorrt, self._specs[name])
                for name in names
            )
        ):
            raise TensorRtError(
                f"the plan of {key.graph_file} has not its graph's inputs and outputs; {REBUILD}"
            )
        return engine

    def _bound_step(self, engine: trt.ICudaEngine, key: PlanKey, profile: int, scratch: int) -> BoundStep:
        """A context in the order TensorRT wants: profile, scratch memory, shapes, addresses."""
        shape = key.steps[profile]
        context = engine.create_execution_context(
            self._tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is None or not context.set_optimization_profile_async(profile, int(self._stream)):
            raise self._refused(f"a context for steps of {shape.width} tokens")
        context.device_memory = scratch
        uploads = []
        for spec in self._variant.inputs:
            sizes = shape_at(spec, dimensions(key, shape))
            if not context.set_input_shape(spec.name, sizes):
                raise self._refused(f"the shape {sizes} of {spec.name}")
            if not spec.name.startswith(ROW_PREFIXES):
                uploads.append(Upload(self._buffers.host(spec.name, sizes), self._addresses[spec.name]))
        step = BoundStep(
            self._cuda, self._stream, context, shape, tuple(uploads), self._reason, self._use_graphs
        )
        for name in self._specs:
            step.bind(name, self._addresses[name])
        try:
            missing = context.infer_shapes()
        except RuntimeError:
            raise self._refused(f"the shapes of a step of {shape.width} tokens") from None
        if missing:
            raise TensorRtError(
                f"the plan of {key.graph_file} has inputs that nothing fills: {missing}; {REBUILD}"
            )
        return step

    def _refused(self, what: str) -> TensorRtError:
        return TensorRtError(f"TensorRT refuses {what} ({self._reason()}); {REBUILD}")

    def _reason(self) -> str:
        """What TensorRT complained of since this was last asked."""
        reason = "; ".join(self._complaints) or "it gives no reason"
        self._complaints.clear()
        return reason
