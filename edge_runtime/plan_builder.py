"""Building TensorRT plans on the device from a bundle's graph files alone: neither torch nor onnx."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acespec.edge_runtime.build_monitor import Progress, interruptible_build
from acespec.edge_runtime.plan_files import PlanFolder
from acespec.edge_runtime.plan_key import PlanKey, dimensions, plan_keys, shape_at, tensorrt_graph
from acespec.edge_runtime.trt_module import (
    TensorRtError,
    TensorRtModule,
    TensorRtRuntime,
    message_logger,
    version_of,
)
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec

if TYPE_CHECKING:
    import tensorrt as trt

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 3


@dataclass(frozen=True)
class BuildTarget:
    """Which TensorRT builds, and for which device."""

    tensorrt: TensorRtModule
    runtime: TensorRtRuntime
    compute_capability: str
    """Such as ``8.7``. TensorRT builds for the device it runs on; for RTX any that it offers."""

    def plan_keys(self, bundle: Bundle, rows: int | None = None) -> tuple[GraphVariant, tuple[PlanKey, ...]]:
        """The graph of ``bundle`` that runs here, and the plans it needs. Raises `TensorRtError`."""
        variant = tensorrt_graph(bundle, self.runtime, version_of(self.tensorrt))
        version, capability = self.tensorrt.__version__, self.compute_capability
        return variant, plan_keys(bundle, variant, self.runtime, version, capability, rows)


class PlanBuilder:
    """Builds the plans of one graph of a bundle that are missing, stale or damaged."""

    def __init__(
        self,
        bundle: Bundle,
        target: BuildTarget,
        folder: PlanFolder,
        workspace_bytes: int | None = None,
        progress: Progress = logger.info,
    ) -> None:
        """``workspace_bytes`` bounds the scratch memory of a layer; None: all the device has."""
        self._bundle = bundle
        self._target = target
        self._folder = folder
        self._workspace_bytes = workspace_bytes
        self._progress = progress
        self._errors: list[str] = []
        self._logger = message_logger(target.tensorrt, self._errors.append)

    def build_missing(self, variant: GraphVariant, keys: Sequence[PlanKey]) -> None:
        """Build the plans that are not there, while nothing else is on the device; see `read_or_build`."""
        for key in keys:
            if not self._folder.has(key):
                self.read_or_build(variant, key)

    def read_or_build(self, variant: GraphVariant, key: PlanKey, force: bool = False) -> bytes:
        """The plan of ``key``, built (and stored) if the one on disk is not exactly it, or ``force``.

        Raises `TensorRtError` when TensorRT refuses the graph, and ``KeyboardInterrupt`` when interrupted;
        nothing is stored then.
        """
        plan = None if force else self._folder.read(key)
        if plan is None:
            with self._folder.held(lambda: self._progress("waiting for another process that builds plans")):
                # It may be the one that was waited for.
                plan = None if force or not self._folder.has(key) else self._folder.read(key)
                if plan is None:
                    return self._built(variant, key)
        self._progress(f"{key.graph_file} is built already")
        return plan

    def _built(self, variant: GraphVariant, key: PlanKey) -> bytes:
        """Build and store the plan of ``key``, and read it back: TensorRT's copy of it can go."""
        self._progress(f"parsing {key.graph_file}")
        self._folder.write(key, memoryview(self._build(variant, key)))
        plan = self._folder.read(key)
        if plan is None:
            raise TensorRtError(f"{self._folder.plan_path(key)} changed while it was written; build it again")
        return plan

    def _build(self, variant: GraphVariant, key: PlanKey) -> Any:
        """Parse, check and compile; returns TensorRT's buffer with the plan."""
        tensorrt = self._target.tensorrt
        self._errors.clear()
        builder = tensorrt.Builder(self._logger)
        network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        config = builder.create_builder_config()
        self._configure(config)
        parser = tensorrt.OnnxParser(network, self._logger)  # it holds the weights: it must outlive the build
        path = self._bundle.path(key.graph_file)
        if not parser.parse_from_file(str(path)):
            raise TensorRtError(f"{self._name} cannot parse {path}: {parser_errors(parser)}")
        check_network(tensorrt, network, variant, key)
        if any(-1 in network.get_input(index).shape for index in range(network.num_inputs)):
            add_profiles(builder, config, variant, key)
        cache = self._attached_timing_cache(config, key)
        with interruptible_build(tensorrt, config, key.graph_file, self._progress) as interrupted:
            plan = builder.build_serialized_network(network, config)
        if interrupted():
            raise KeyboardInterrupt
        if plan is None:
            causes = "; ".join(self._errors[-SHOWN_ERRORS:]) or "it gives no reason"
            raise TensorRtError(f"{self._name} cannot build a plan of {path}: {causes}")
        if cache is not None:
            self._folder.write_timing_cache(key, memoryview(cache.serialize()))
        return plan

    @property
    def _name(self) -> str:
        return f"{self._target.runtime} {self._target.tensorrt.__version__}"

    def _configure(self, config: trt.IBuilderConfig) -> None:
        tensorrt = self._target.tensorrt
        if self._workspace_bytes is not None:
            config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, self._workspace_bytes)
        if self._target.runtime == "tensorrt-rtx":
            # Else it may allocate while it runs, which cannot be captured in a CUDA graph.
            config.set_flag(tensorrt.BuilderFlag.REQUIRE_USER_ALLOCATION)
            config.num_compute_capabilities = 1
            config.set_compute_capability(rtx_capability(self._target), 0)

    def _attached_timing_cache(self, config: trt.IBuilderConfig, key: PlanKey) -> trt.ITimingCache | None:
        """Give the build what earlier ones measured on this device; TensorRT for RTX measures nothing."""
        if self._target.runtime == "tensorrt-rtx":
            return None
        for content in (self._folder.read_timing_cache(key), b""):
            cache = config.create_timing_cache(content)
            if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
                return cache
            logger.warning("the timing cache of earlier builds is of another device; beginning a new one")
        raise TensorRtError(f"{self._name} takes no timing cache; reinstall it")


def rtx_capability(target: BuildTarget) -> trt.ComputeCapability:
    """The target's device as TensorRT for RTX calls it. Raises `TensorRtError` listing those it offers."""
    wanted = target.compute_capability
    offered: dict[str, trt.ComputeCapability] = {
        f"{name[2:-1]}.{name[-1]}": capability
        for name, capability in vars(target.tensorrt.ComputeCapability).items()
        if name.startswith("SM") and name[2:].isdigit()
    }
    if wanted not in offered:
        listed = ", ".join(sorted(offered, key=float))
        raise TensorRtError(
            f"TensorRT for RTX builds no plans for compute capability {wanted} (it offers: {listed}); "
            "choose one with --compute-capability, or --runtime tensorrt"
        )
    return offered[wanted]


def add_profiles(
    builder: trt.Builder, config: trt.IBuilderConfig, variant: GraphVariant, key: PlanKey
) -> None:
    """One optimisation profile a step, each of exactly its shapes: nothing about a step varies."""
    for step in key.steps:
        profile = builder.create_optimization_profile()
        sizes = dimensions(key, step)
        for spec in variant.inputs:
            shape = shape_at(spec, sizes)
            profile.set_shape(spec.name, shape, shape, shape)
        if config.add_optimization_profile(profile) < 0:
            raise TensorRtError(f"TensorRT refuses the shapes of a step of {step.width} tokens")


def check_network(
    tensorrt: TensorRtModule, network: trt.INetworkDefinition, variant: GraphVariant, key: PlanKey
) -> None:
    """Raise `TensorRtError` unless the parsed graph has the manifest's inputs and outputs."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    for kind, tensors, specs in (("input", inputs, variant.inputs), ("output", outputs, variant.outputs)):
        found = {tensor.name: tensor for tensor in tensors}
        if found.keys() != {spec.name for spec in specs}:
            differing = sorted(found.keys() ^ {spec.name for spec in specs})
            raise _not_the_manifests(key, f"{kind} {differing[0]}")
        for spec in specs:
            tensor = found[spec.name]
            fits = all(
                _fits(tuple(tensor.shape), shape_at(spec, dimensions(key, step))) for step in key.steps
            )
            if not fits or tensor.dtype != tensor_type(tensorrt, spec):
                raise _not_the_manifests(key, f"{kind} {spec.name}")


def _not_the_manifests(key: PlanKey, what: str) -> TensorRtError:
    return TensorRtError(f"{key.graph_file} and the manifest differ in {what}; export the bundle again")


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether ``found``, where -1 is a dimension that varies, can be ``expected``."""
    return len(found) == len(expected) and all(
        size in (-1, wanted) for size, wanted in zip(found, expected, strict=True)
    )


def tensor_type(tensorrt: TensorRtModule, spec: TensorSpec) -> trt.DataType:
    """``spec``'s dtype as TensorRT calls it. Raises `TensorRtError` for one no graph of ours has."""
    types = tensorrt.DataType
    known = {
        "float": types.FLOAT,
        "float16": types.HALF,
        "bfloat16": types.BF16,
        "int32": types.INT32,
        "int64": types.INT64,
    }
    if spec.dtype not in known:
        raise TensorRtError(f"{spec.name} is of type {spec.dtype}, which TensorRT graphs do not have")
    return known[spec.dtype]


def parser_errors(parser: trt.OnnxParser) -> str:
    """What the parser refused: node, operator and reason of the first few."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    shown = [
        f"node {error.node_name() or error.node()} ({error.node_operator() or 'no operator'}): "
        + " ".join(error.desc().split())
        for error in errors[:SHOWN_ERRORS]
    ]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "") if shown else "it gives no reason"
