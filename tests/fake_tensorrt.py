"""A TensorRT without a GPU that holds its caller to TensorRT's rules and computes with ONNX Runtime.

A plan is a few lines of JSON that name the graph file and its profiles. `fake_tensorrt` makes a module with
the names and calls of `typings/tensorrt`, whose contexts work in the memory of a `FakeCuda`. What TensorRT
would refuse is refused as TensorRT does (False or None, and a message to the logger); what it leaves
undefined (memory that was freed, outputs on top of each other) is an ``AssertionError``.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from fake_cuda import FakeCuda, Operation

SCRATCH_OF_A_TOKEN = 1000
"""Bytes of scratch memory that a step needs for each of its tokens."""
ALIGNMENT = 256


class DataType(enum.Enum):
    FLOAT = "float"
    HALF = "float16"
    BF16 = "bfloat16"
    INT32 = "int32"
    INT64 = "int64"


class TensorIOMode(enum.Enum):
    INPUT = 0
    OUTPUT = 1


class NetworkDefinitionCreationFlag(enum.IntEnum):
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class BuilderFlag(enum.Enum):
    REQUIRE_USER_ALLOCATION = 0


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    USER_MANAGED = 1


class ComputeCapability:
    SM80 = "8.0"
    SM89 = "8.9"
    SM120 = "12.0"


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self.is_made = True

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def __init__(self) -> None:
        self.is_made = True


class Dims(tuple):  # type: ignore[type-arg]
    """A shape."""


class HostMemory(bytes):
    """TensorRT's buffer: bytes that Python sees through the buffer protocol."""


@dataclass
class Tensor:
    name: str
    dtype: DataType
    shape: Dims


@functools.cache
def session(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def tensors(arguments: Sequence[ort.NodeArg]) -> list[Tensor]:
    return [
        Tensor(
            argument.name,
            DataType(argument.type.removeprefix("tensor(").removesuffix(")")),
            Dims(size if isinstance(size, int) else -1 for size in argument.shape),
        )
        for argument in arguments
    ]


class Network:
    def __init__(self) -> None:
        self.path = ""
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))

    def get_input(self, index: int) -> Tensor:
        return self.inputs[index]

    def get_output(self, index: int) -> Tensor:
        return self.outputs[index]


@dataclass
class ParserError:
    index: int
    name: str
    operator: str
    text: str

    def node(self) -> int:
        return self.index

    def node_name(self) -> str:
        return self.name

    def node_operator(self) -> str:
        return self.operator

    def desc(self) -> str:
        return self.text


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def set_shape(self, name: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:  # noqa: A002
        assert tuple(min) == tuple(opt) == tuple(max)
        self.shapes[name] = tuple(opt)


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> HostMemory:
        return HostMemory(self.content + b"timed;")


class Config:
    def __init__(self) -> None:
        self.progress_monitor: Any = None
        self.num_compute_capabilities = 0
        self.capabilities: dict[int, str] = {}
        self.flags: set[BuilderFlag] = set()
        self.pools: dict[MemoryPoolType, int] = {}
        self.profiles: list[Profile] = []
        self.timing_cache: TimingCache | None = None

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self.pools[pool] = pool_size

    def set_compute_capability(self, compute_capability: str, index: int) -> bool:
        assert index < self.num_compute_capabilities
        self.capabilities[index] = compute_capability
        return True

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache | None:
        return TimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if b"foreign" in cache.content:
            return False
        self.timing_cache = cache
        return True


@dataclass
class World:
    """What the module's classes share, and what a test makes go wrong."""

    cuda: FakeCuda
    parser_errors: list[ParserError] = field(default_factory=list)
    build_error: str | None = None
    on_build_step: Callable[[], None] = lambda: None
    builds: list[str] = field(default_factory=list)
    """Graph files built, in order."""
    configs: list[Config] = field(default_factory=list)
    refuses_plans: bool = False
    refuses_contexts: bool = False
    fails_to_run: bool = False
    is_capturable: bool = True
    live_contexts: int = 0


class Builder:
    def __init__(self, world: World, logger: ILogger) -> None:
        assert logger.is_made
        self._world = world
        self._logger = logger

    def create_network(self, flags: int = 0) -> Network:
        assert flags & (1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return Network()

    def create_builder_config(self) -> Config:
        self._world.configs.append(Config())
        return self._world.configs[-1]

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> HostMemory | None:
        world, monitor = self._world, config.progress_monitor
        assert monitor.is_made
        monitor.phase_start("Building engine", None, 2)
        for step in range(2):
            world.on_build_step()
            if not monitor.step_complete("Building engine", step):
                return None
        monitor.phase_finish("Building engine")
        if world.build_error is not None:
            self._logger.log(ILogger.Severity.ERROR, world.build_error)
            return None
        dynamic = {tensor.name for tensor in network.inputs if -1 in tensor.shape}
        if dynamic and not (config.profiles and all(dynamic <= p.shapes.keys() for p in config.profiles)):
            self._logger.log(ILogger.Severity.ERROR, "a dynamic input has no profile")
            return None
        static = {tensor.name: tensor.shape for tensor in network.inputs}
        world.builds.append(network.path)
        profiles = [profile.shapes for profile in config.profiles] or [static]
        return HostMemory(json.dumps({"graph": network.path, "profiles": profiles}).encode())


class OnnxParser:
    def __init__(self, world: World, network: Network, logger: ILogger) -> None:
        self._world = world
        self._network = network

    @property
    def num_errors(self) -> int:
        return len(self._world.parser_errors)

    def get_error(self, index: int) -> ParserError:
        return self._world.parser_errors[index]

    def parse_from_file(self, model: str) -> bool:
        if self._world.parser_errors:
            return False
        self._network.path = model
        self._network.inputs = tensors(session(model).get_inputs())
        self._network.outputs = tensors(session(model).get_outputs())
        return True


class Runtime:
    def __init__(self, world: World, logger: ILogger) -> None:
        assert logger.is_made
        self._world = world
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        if self._world.refuses_plans:
            self._logger.log(ILogger.Severity.ERROR, "the plan is of another device")
            return None
        return Engine(self._world, self._logger, json.loads(serialized_engine))


class Engine:
    def __init__(self, world: World, logger: ILogger, plan: dict[str, Any]) -> None:
        self.world = world
        self.logger = logger
        self.session = session(plan["graph"])
        self.profiles: list[dict[str, Any]] = plan["profiles"]
        self.inputs = {tensor.name: tensor for tensor in tensors(self.session.get_inputs())}
        self.outputs = {tensor.name: tensor for tensor in tensors(self.session.get_outputs())}
        self.names = [*self.inputs, *self.outputs]

    num_io_tensors = property(lambda self: len(self.names))
    num_optimization_profiles = property(lambda self: len(self.profiles))

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return (self.inputs | self.outputs)[name].dtype

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return SCRATCH_OF_A_TOKEN * self.profiles[profile_index]["input_ids"][1]

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> Context | None:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return None if self.world.refuses_contexts else Context(self)


class Context:
    """An execution context."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cuda = engine.world.cuda
        self._profile: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch: int | None = None
        self._is_prepared = False
        engine.world.live_contexts += 1

    def __del__(self) -> None:
        self._engine.world.live_contexts -= 1

    def _refuse(self, why: str) -> bool:
        self._engine.logger.log(ILogger.Severity.ERROR, why)
        return False

    def _set_scratch(self, address: int) -> None:
        assert self._profile is not None, "scratch memory before a profile"
        needed = self._engine.get_device_memory_size_for_profile_v2(self._profile)
        assert self._cuda.block_size(address) >= needed, "too little scratch memory"
        self._scratch = address

    device_memory = property(None, _set_scratch)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if profile_index >= len(self._engine.profiles):
            return self._refuse("no such profile")
        self._profile = profile_index
        self._shapes.clear()
        self._is_prepared = False
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._profile is not None, "a shape before a profile"
        if name not in self._engine.inputs:
            return self._refuse(f"{name} is no input")
        if tuple(self._engine.profiles[self._profile][name]) != tuple(shape):
            return self._refuse(f"{name}: {shape} is not within the profile")
        self._shapes[name] = tuple(shape)
        self._is_prepared = False
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine.names:
            return self._refuse(f"there is no tensor {name}")
        if memory % ALIGNMENT:
            return self._refuse(f"{name} is not aligned")
        missing = self._engine.inputs.keys() - self._shapes.keys()
        assert not missing, f"the address of {name} before the shapes of {missing}"
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine.inputs if name not in self._shapes]

    def execute_async_v3(self, stream_handle: int) -> bool:
        missing = [name for name in self._engine.names if name not in self._addresses]
        if missing:
            return self._refuse(f"no address for {missing[0]}")
        if self._scratch is None:
            return self._refuse("no scratch memory")
        if self._engine.world.fails_to_run:
            return self._refuse("the step failed")
        if self._cuda.is_capturing(stream_handle) and not (
            self._is_prepared and self._engine.world.is_capturable
        ):
            self._cuda.invalidate(stream_handle)
            return self._refuse("it allocates memory, which cannot be captured")
        self._is_prepared = True
        # A graph replays what was bound when it was captured.
        run = functools.partial(self._run, dict(self._shapes), dict(self._addresses), self._scratch)
        self._cuda.give(stream_handle, Operation(lambda: run))
        return True

    def _run(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int], scratch: int) -> None:
        inputs = {
            name: self._view(addresses[name], tensor.dtype, shapes[name]).copy()
            for name, tensor in self._engine.inputs.items()
        }
        outputs = self._engine.session.run(None, inputs)
        assert self._profile is not None
        self._cuda.device(scratch, self._engine.get_device_memory_size_for_profile_v2(self._profile)).fill(
            0xFF
        )
        regions = []
        for name, values in zip(self._engine.outputs, outputs, strict=True):
            address = addresses[name]
            self._check_alias(name, addresses)
            self._view(address, self._engine.outputs[name].dtype, values.shape)[:] = values
            regions.append((address, address + values.nbytes))
        for (_, end), (begin, _) in itertools.pairwise(sorted(regions)):
            assert end <= begin, "outputs on top of each other"

    def _check_alias(self, name: str, addresses: dict[str, int]) -> None:
        """What updates a cache in place must be given one address for both."""
        if name.startswith("present_"):
            past = name.replace("present_", "past_")
            assert addresses[name] == addresses[past], f"{name} must lie where {past} does"

    def _view(self, address: int, dtype: DataType, shape: Sequence[int]) -> NDArray[Any]:
        types = {
            DataType.FLOAT: np.float32,
            DataType.HALF: np.float16,
            DataType.INT32: np.int32,
            DataType.INT64: np.int64,
        }
        kind = np.dtype(types[dtype])
        raw = self._cuda.device(address, int(np.prod(shape)) * kind.itemsize)
        return raw.view(kind).reshape(shape)


def fake_tensorrt(cuda: FakeCuda, version: str = "10.3.0") -> tuple[Any, World]:
    """The module, and the world behind it."""
    world = World(cuda)
    module = SimpleNamespace(
        __version__=version,
        Builder=functools.partial(Builder, world),
        OnnxParser=functools.partial(OnnxParser, world),
        Runtime=functools.partial(Runtime, world),
        BuilderFlag=BuilderFlag,
        ComputeCapability=ComputeCapability,
        DataType=DataType,
        ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
        ILogger=ILogger,
        IProgressMonitor=IProgressMonitor,
        MemoryPoolType=MemoryPoolType,
        NetworkDefinitionCreationFlag=NetworkDefinitionCreationFlag,
        TensorIOMode=TensorIOMode,
    )
    return module, world
