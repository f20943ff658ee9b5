# ruff: noqa: N802, N815 - the names are CUDA's
"""A CUDA runtime without a GPU that holds its caller to CUDA's rules.

Device memory has addresses of its own, far from the host's. What is given to a stream happens when somebody
waits for it, not before: who reads too early reads garbage, who changes an input too early is caught. A
broken rule is an ``AssertionError``; an error that CUDA would report is its code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
GARBAGE = 0xCD


class Code(enum.IntEnum):
    SUCCESS = 0
    OUT_OF_MEMORY = 2
    CAPTURE_INVALIDATED = 901
    LAUNCH_FAILURE = 719


@dataclass(frozen=True)
class Operation:
    """Something a stream does. ``prepare`` runs when it is given, and returns what then happens."""

    prepare: Callable[[], Callable[[], None]]


@dataclass
class Stream:
    pending: list[Callable[[], None]] = field(default_factory=list)
    recording: list[Operation] | None = None
    is_invalid: bool = False


class FakeCuda:
    """`CudaBindings`. ``capacity`` bounds the device's memory, ``failures`` are calls' codes to return."""

    cudaMemcpyKind = SimpleNamespace(
        cudaMemcpyHostToDevice="to device",
        cudaMemcpyDeviceToHost="to host",
        cudaMemcpyDeviceToDevice="on device",
    )
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrComputeCapabilityMajor=0, cudaDevAttrComputeCapabilityMinor=1)
    cudaStreamNonBlocking = 1

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.capability = (8, 7)
        self.failures: dict[str, Code] = {}
        self.launches = 0
        self.copies: list[tuple[int, int]] = []
        """Width and height of each copy on the device."""
        self._blocks: dict[int, Bytes] = {}
        self._pinned: dict[int, Bytes] = {}
        self._streams: dict[int, Stream] = {}
        self._graphs: dict[int, list[Operation]] = {}
        self._executables: dict[int, list[Operation]] = {}
        self._next = 1 << 40
        self._handle = 0

    def __getattribute__(self, name: str) -> Any:
        failures = object.__getattribute__(self, "__dict__").get("failures", {})
        if name in failures:
            code = failures[name]

            def failing(*_: Any) -> tuple[Any, ...]:
                return code, None

            failing.__name__ = name
            return failing
        return object.__getattribute__(self, name)

    def device(self, address: int, num_bytes: int) -> Bytes:
        """The bytes at ``address``, which must lie in one live block."""
        for start, block in self._blocks.items():
            if start <= address and address + num_bytes <= start + len(block):
                return block[address - start : address - start + num_bytes]
        raise AssertionError(f"{num_bytes} bytes at {address:#x} are no device memory")

    def block_size(self, address: int) -> int:
        assert address in self._blocks, f"{address:#x} is not where a block begins"
        return len(self._blocks[address])

    def host(self, address: int, num_bytes: int) -> Bytes:
        for start, block in self._pinned.items():
            if start <= address and address + num_bytes <= start + len(block):
                return block[address - start : address - start + num_bytes]
        raise AssertionError(f"{num_bytes} bytes at {address:#x} are no pinned memory")

    def give(self, stream: Any, operation: Operation) -> None:
        """Let ``stream`` do something, or record it."""
        target = self._streams[int(stream)]
        if target.recording is not None:
            target.recording.append(operation)
        else:
            target.pending.append(operation.prepare())

    def is_capturing(self, stream: int) -> bool:
        return self._streams[int(stream)].recording is not None

    def invalidate(self, stream: int) -> None:
        self._streams[int(stream)].is_invalid = True

    def check_nothing_is_left(self) -> None:
        left = [self._blocks, self._pinned, self._streams, self._graphs, self._executables]
        assert not any(left), left

    def _check_idle(self) -> None:
        assert not any(stream.pending for stream in self._streams.values()), "the device is still at work"
        self._check_not_capturing()

    def _check_not_capturing(self) -> None:
        capturing = any(stream.recording is not None for stream in self._streams.values())
        assert not capturing, "not allowed during a capture"

    def cudaGetErrorString(self, error: Code) -> tuple[Any, ...]:
        return Code.SUCCESS, Code(error).name.lower().replace("_", " ").encode()

    def cudaGetDevice(self) -> tuple[Any, ...]:
        return Code.SUCCESS, 0

    def cudaDeviceGetAttribute(self, attr: int, device: int) -> tuple[Any, ...]:
        return Code.SUCCESS, self.capability[attr]

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:
        self._check_not_capturing()
        assert size > 0
        if sum(map(len, self._blocks.values())) + size > self.capacity:
            return Code.OUT_OF_MEMORY, None
        address, self._next = self._next, self._next + (size // 512 + 9) * 512
        self._blocks[address] = np.full(size, 0xFF, np.uint8)  # NaN, whatever the float
        return Code.SUCCESS, address

    def cudaFree(self, address: int) -> tuple[Any, ...]:
        self._check_idle()
        del self._blocks[address]
        return (Code.SUCCESS,)

    def cudaMallocHost(self, size: int) -> tuple[Any, ...]:
        self._check_not_capturing()
        block = np.full(size, GARBAGE, np.uint8)
        self._pinned[block.ctypes.data] = block
        return Code.SUCCESS, block.ctypes.data

    def cudaFreeHost(self, address: int) -> tuple[Any, ...]:
        self._check_idle()
        del self._pinned[address]
        return (Code.SUCCESS,)

    def cudaMemsetAsync(self, address: int, value: int, count: int, stream: Any) -> tuple[Any, ...]:
        self.give(stream, Operation(lambda: lambda: self.device(address, count).fill(value)))
        return (Code.SUCCESS,)

    def cudaMemcpyAsync(
        self, target: int, source: int, count: int, kind: str, stream: Any
    ) -> tuple[Any, ...]:
        if kind == "to device":

            def upload() -> Callable[[], None]:
                given = self.host(source, count).copy()

                def run() -> None:
                    assert np.array_equal(self.host(source, count), given), "an input changed too early"
                    self.device(target, count)[:] = given

                return run

            self.give(stream, Operation(upload))
        else:
            assert kind == "to host", kind

            def download() -> Callable[[], None]:
                self.host(target, count).fill(GARBAGE)

                def run() -> None:
                    self.host(target, count)[:] = self.device(source, count)

                return run

            self.give(stream, Operation(download))
        return (Code.SUCCESS,)

    def cudaMemcpy2DAsync(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
        kind: str,
        stream: Any,
    ) -> tuple[Any, ...]:
        assert kind == "on device", kind
        assert 0 < width <= min(target_pitch, source_pitch), (width, target_pitch, source_pitch)
        self.copies.append((width, height))
        targets = [target + index * target_pitch for index in range(height)]
        sources = [source + index * source_pitch for index in range(height)]
        for at in targets:
            assert all(abs(at - other) >= width for other in sources), "a copy onto itself"

        def run() -> None:
            for to, at in zip(targets, sources, strict=True):
                self.device(to, width)[:] = self.device(at, width)

        self.give(stream, Operation(lambda: run))
        return (Code.SUCCESS,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, ...]:
        self._handle += 1
        self._streams[self._handle] = Stream()
        return Code.SUCCESS, self._handle

    def cudaStreamDestroy(self, stream: Any) -> tuple[Any, ...]:
        self._check_idle()
        del self._streams[int(stream)]
        return (Code.SUCCESS,)

    def cudaStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        self._check_not_capturing()
        pending, self._streams[int(stream)].pending = self._streams[int(stream)].pending, []
        for run in pending:
            run()
        return (Code.SUCCESS,)

    def cudaStreamBeginCapture(self, stream: Any, mode: int) -> tuple[Any, ...]:
        target = self._streams[int(stream)]
        assert target.recording is None
        target.recording, target.is_invalid = [], False
        return (Code.SUCCESS,)

    def cudaStreamEndCapture(self, stream: Any) -> tuple[Any, ...]:
        target = self._streams[int(stream)]
        assert target.recording is not None
        recording, target.recording = target.recording, None
        if target.is_invalid:
            return Code.CAPTURE_INVALIDATED, None
        self._handle += 1
        self._graphs[self._handle] = recording
        return Code.SUCCESS, self._handle

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        self._handle += 1
        self._executables[self._handle] = list(self._graphs[graph])
        return Code.SUCCESS, self._handle

    def cudaGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        del self._graphs[graph]
        return (Code.SUCCESS,)

    def cudaGraphLaunch(self, executable: int, stream: Any) -> tuple[Any, ...]:
        self.launches += 1
        for operation in self._executables[executable]:
            self.give(stream, operation)
        return (Code.SUCCESS,)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[Any, ...]:
        self._check_idle()
        del self._executables[executable]
        return (Code.SUCCESS,)
