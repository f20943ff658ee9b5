"""One step's width on TensorRT: an execution context with everything bound, replayed as a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda, CudaError
from acespec.edge_runtime.plan_key import StepShape
from acespec.edge_runtime.trt_module import TensorRtError

if TYPE_CHECKING:
    import tensorrt as trt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upload:
    """An input that is copied to the device before each run."""

    source: NDArray[Any]
    """Pinned; at the same place each time."""
    target: int


class BoundStep:
    """A context at one profile, its inputs' shapes and all addresses set once.

    The first run is plain: TensorRT may allocate in it. The second is captured as a CUDA graph, uploads
    included, and from then on the graph is launched. Binding another address drops the graph.
    """

    def __init__(
        self,
        cuda: Cuda,
        stream: Any,
        context: trt.IExecutionContext,
        shape: StepShape,
        uploads: tuple[Upload, ...],
        reason: Callable[[], str],
        use_graph: bool,
    ) -> None:
        """``reason`` gives what TensorRT last complained of; ``use_graph`` False: every run is plain."""
        self.shape = shape
        self._cuda = cuda
        self._stream = stream
        self._context: trt.IExecutionContext | None = context
        self._uploads = uploads
        self._reason = reason
        self._use_graph = use_graph
        self._is_warm = False
        self._graph: Any = None

    def bind(self, name: str, address: int) -> None:
        """Tell the context where tensor ``name`` lies. Raises `TensorRtError` if it refuses."""
        assert self._context is not None
        self._drop_graph()
        if not self._context.set_tensor_address(name, address):
            raise TensorRtError(f"TensorRT refuses the address of {name} ({self._reason()})")

    def run(self) -> None:
        """Give the stream the step. Raises `TensorRtError` or `CudaError`."""
        if self._use_graph and self._is_warm and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._cuda.launch(self._graph, self._stream)
        else:
            try:
                self._enqueue()
            except TensorRtError:
                self._cuda.synchronize(self._stream)  # it may still be reading the inputs
                raise
            self._is_warm = True

    def close(self) -> None:
        """Wait for the device, then free the graph and the context."""
        self._cuda.synchronize(self._stream)
        self._drop_graph()
        self._context = None

    def _enqueue(self) -> None:
        assert self._context is not None
        for upload in self._uploads:
            self._cuda.copy_to_device(upload.target, upload.source, self._stream)
        if not self._context.execute_async_v3(int(self._stream)):
            raise TensorRtError(
                f"TensorRT cannot run a step of {self.shape.width} tokens ({self._reason()}); "
                "build the plans again with: acespec engine build BUNDLE --force"
            )

    def _capture(self) -> None:
        """Record a run. Where that is not possible, say so once and run plainly from then on."""
        self._cuda.begin_capture(self._stream)
        failure: Exception | None = None
        try:
            self._enqueue()
        except (TensorRtError, CudaError) as error:
            failure = error
        try:
            self._graph = self._cuda.end_capture(self._stream)  # also after a failure: it ends the capture
        except CudaError as error:
            failure = failure or error
        if failure is not None:
            self._drop_graph()
            self._use_graph = False
            logger.warning("steps of %d tokens run without a CUDA graph: %s", self.shape.width, failure)

    def _drop_graph(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self._cuda.destroy_executable(graph)
        self._is_warm = False
