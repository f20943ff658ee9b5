"""A thin layer over the CUDA runtime (``cuda-python``'s ``cuda.bindings.runtime``): errors become exceptions.

Every call of the bindings returns a tuple whose first item is the error code. Addresses are integers.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.cuda_bindings import CudaBindings, Result
from acespec.errors import AcespecError

Scalar = TypeVar("Scalar", bound=np.generic)
Arguments = ParamSpec("Arguments")

ALIGNMENT = 256
"""Bytes; TensorRT wants every tensor's address to be a multiple. ``cudaMalloc`` gives no less."""


class CudaError(AcespecError):
    """The CUDA runtime is missing or a call of it failed."""


def load_cuda() -> Cuda:
    """The CUDA runtime of this machine. Raises `CudaError` with what to install when there is none."""
    try:
        bindings = importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise CudaError(
            f"the CUDA runtime cannot be imported ({error}); pip install the cuda-python of this machine's "
            "CUDA: 'cuda-python==12.6.*' on JetPack 6, 'cuda-python==13.*' on JetPack 7"
        ) from None
    return Cuda(cast("CudaBindings", bindings))


class Cuda:
    """The calls an engine makes. Each raises `CudaError`, naming the call, when CUDA reports an error."""

    def __init__(self, bindings: CudaBindings) -> None:
        self._bindings = bindings

    def _checked(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Any:
        """Make ``call`` and return what it returns behind the error code."""
        code, *values = call(*arguments, **named)
        if int(code) != 0:
            _, text = self._bindings.cudaGetErrorString(code)
            cause = text.decode() if isinstance(text, bytes) else str(text)
            name = getattr(call, "__name__", "a call")
            raise CudaError(f"CUDA's {name} failed ({cause}); acespec doctor says what this machine can run")
        return values[0] if values else None

    def compute_capability(self) -> str:
        """Of the device in use, such as ``8.7``."""
        device = self._checked(self._bindings.cudaGetDevice)
        names = self._bindings.cudaDeviceAttr
        major, minor = (
            self._checked(self._bindings.cudaDeviceGetAttribute, attribute, device)
            for attribute in (
                names.cudaDevAttrComputeCapabilityMajor,
                names.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return f"{major}.{minor}"

    def allocate(self, num_bytes: int) -> int:
        """Device memory; its address."""
        return int(self._checked(self._bindings.cudaMalloc, num_bytes))

    def free(self, address: int) -> None:
        self._checked(self._bindings.cudaFree, address)

    def allocate_pinned(self, shape: Sequence[int], dtype: np.dtype[Scalar]) -> NDArray[Scalar]:
        """Host memory that the device copies from and to by itself, full of zeros; free it when done."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        address = int(self._checked(self._bindings.cudaMallocHost, num_bytes))
        memory = (ctypes.c_byte * num_bytes).from_address(address)
        array: NDArray[Scalar] = np.ndarray(tuple(shape), dtype, memoryview(memory))
        array.fill(0)
        return array

    def free_pinned(self, array: NDArray[Any]) -> None:
        """No view of it may be used any more."""
        self._checked(self._bindings.cudaFreeHost, array.ctypes.data)

    def create_stream(self) -> Any:
        return self._checked(self._bindings.cudaStreamCreateWithFlags, self._bindings.cudaStreamNonBlocking)

    def destroy_stream(self, stream: Any) -> None:
        self._checked(self._bindings.cudaStreamDestroy, stream)

    def synchronize(self, stream: Any) -> None:
        """Wait for everything the stream was given."""
        self._checked(self._bindings.cudaStreamSynchronize, stream)

    def fill_zeros(self, address: int, num_bytes: int, stream: Any) -> None:
        self._checked(self._bindings.cudaMemsetAsync, address, 0, num_bytes, stream)

    def copy_to_device(self, target: int, source: NDArray[Any], stream: Any) -> None:
        """Copy a contiguous pinned array; it must not change until the stream has come this far."""
        assert source.flags.c_contiguous
        kind = self._bindings.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._checked(self._bindings.cudaMemcpyAsync, target, source.ctypes.data, source.nbytes, kind, stream)

    def copy_to_host(self, target: NDArray[Any], source: int, stream: Any) -> None:
        """Fill a contiguous pinned array; it may be read once the stream has come this far."""
        assert target.flags.c_contiguous
        kind = self._bindings.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._checked(self._bindings.cudaMemcpyAsync, target.ctypes.data, source, target.nbytes, kind, stream)

    def copy_planes(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
        stream: Any,
    ) -> None:
        """Copy ``height`` pieces of ``width`` bytes on the device, a pitch apart; they must not overlap."""
        kind = self._bindings.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._checked(
            self._bindings.cudaMemcpy2DAsync,
            target,
            target_pitch,
            source,
            source_pitch,
            width,
            height,
            kind,
            stream,
        )

    def begin_capture(self, stream: Any) -> None:
        """From here on, what this thread gives the stream is recorded and not run."""
        mode = self._bindings.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._checked(self._bindings.cudaStreamBeginCapture, stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """The recording, ready to be launched."""
        graph = self._checked(self._bindings.cudaStreamEndCapture, stream)
        try:
            return self._checked(self._bindings.cudaGraphInstantiate, graph, 0)
        finally:
            self._checked(self._bindings.cudaGraphDestroy, graph)

    def launch(self, executable: Any, stream: Any) -> None:
        self._checked(self._bindings.cudaGraphLaunch, executable, stream)

    def destroy_executable(self, executable: Any) -> None:
        self._checked(self._bindings.cudaGraphExecDestroy, executable)


def aligned(num_bytes: int) -> int:
    """``num_bytes``, or as few more as make a multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
