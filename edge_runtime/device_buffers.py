"""An engine's memory on the device and, pinned, on the host: made once, at fixed places, freed together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda, aligned
from acespec.edge_runtime.trt_module import TensorRtError
from acespec.models.manifest import TensorSpec

HOST_TYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}


class DeviceBuffers:
    """A place on the device for each of some tensors, with a pinned twin on the host.

    Steps of several widths use the same memory, each from its beginning: one runs at a time.
    """

    def __init__(
        self, cuda: Cuda, stack: ExitStack, sizes: Mapping[str, int], specs: Mapping[str, TensorSpec]
    ) -> None:
        """``sizes`` gives each tensor's elements at its largest. ``stack`` frees the memory."""
        self._cuda = cuda
        self.addresses: dict[str, int] = {}
        self._host: dict[str, NDArray[Any]] = {}
        for name, elements in sizes.items():
            dtype = host_type(specs[name])
            self.addresses[name] = allocate(cuda, stack, elements * dtype.itemsize)
            pinned = cuda.allocate_pinned((elements,), dtype)
            stack.callback(cuda.free_pinned, pinned)
            self._host[name] = pinned

    def host(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The pinned twin of tensor ``name``, as much of it as ``shape`` takes."""
        return self._host[name][: math.prod(shape)].reshape(shape)

    def download(self, name: str, first: int, rows: int, row_size: int, stream: Any) -> NDArray[Any]:
        """Have rows ``first .. first + rows - 1`` of ``row_size`` elements copied to the host.

        They may be read, ``[rows, row_size]``, once the stream has come this far.
        """
        target = self.host(name, (rows, row_size))
        source = self.addresses[name] + first * row_size * target.itemsize
        self._cuda.copy_to_host(target, source, stream)
        return target


def allocate(cuda: Cuda, stack: ExitStack, num_bytes: int) -> int:
    """Device memory that ``stack`` frees; its address."""
    address = cuda.allocate(aligned(num_bytes))
    stack.callback(cuda.free, address)
    return address


def host_type(spec: TensorSpec) -> np.dtype[Any]:
    """NumPy's name for the type of ``spec``. Raises `TensorRtError` for bfloat16, which it lacks."""
    if spec.dtype not in HOST_TYPES:
        raise TensorRtError(f"{spec.name} is of type {spec.dtype}, which the host cannot fill or read")
    return HOST_TYPES[spec.dtype]
