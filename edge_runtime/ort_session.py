"""Opening a bundle's graph in ONNX Runtime, and what is said when this build of it will run it slowly."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from acespec.edge_runtime.providers import CPU, PROVIDERS
from acespec.errors import AcespecError
from acespec.machine import byte_precision
from acespec.models.manifest import BundleManifest

logger = logging.getLogger(__name__)


class EngineError(AcespecError):
    """A bundle's graph cannot be run here."""


@dataclass(frozen=True)
class SessionSettings:
    """What a graph is run with."""

    provider: str = "cpu"
    """A key of `PROVIDERS`. What it cannot compute goes to the CPU."""
    threads: int = 1
    spin: bool = False
    """Whether threads stay busy for a moment after each operator: shortens a step of several threads, heats
    the device and takes time from whatever else runs. One thread waits for nothing."""
    accuracy_level: int = 4
    """Of int4 and int8 weights whose activations are floats: 4 (fastest) multiplies in int8, 1 in float32."""


def open_session(path: Path, settings: SessionSettings) -> ort.InferenceSession:
    """Load the graph in ``path``. Raises `EngineError` when it does not load or nothing runs it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A pattern is kept for every shape seen, and the past grows by the step: it would only ever leak.
    options.enable_mem_pattern = False
    spins = settings.spin and settings.threads > 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(settings.accuracy_level))
    options.add_session_config_entry("session.x64quantprecision", byte_precision())
    name = PROVIDERS[settings.provider]
    wanted: list[str | tuple[str, dict[str, str]]] = [CPU]
    if name != CPU:
        wanted.insert(0, (name, provider_options(settings.provider, path)))
    try:
        session = ort.InferenceSession(str(path), options, providers=wanted, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's errors share no narrower base
        cause = " ".join(str(error).split())
        raise EngineError(f"ONNX Runtime cannot load {path} ({cause}); export the bundle again") from None
    if name not in session.get_providers():
        raise EngineError(
            f"ONNX Runtime does not start {name} for {path}; see acespec doctor, or choose --provider cpu"
        )
    return session


def provider_options(provider: str, graph: Path) -> dict[str, str]:
    """TensorRT builds an engine for minutes: it is kept beside the graph. Others need nothing said."""
    if provider != "tensorrt":
        return {}
    return {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(graph.parent / "engines")}


def warn_if_slow(manifest: BundleManifest, version: str = ort.__version__) -> None:
    """Warn when this ONNX Runtime's CPU computes the bundle's numbers the long way round."""
    quantization = manifest.quantization
    is_old = tuple(map(int, version.split(".")[:2])) < (1, 25)
    if quantization is not None and quantization.activation_bits is None:
        if is_old and 8 in (quantization.bits, quantization.head_bits):
            logger.warning(
                "onnxruntime %s has no kernel for 8-bit weights, %s bundles run slower than fp32 ones; "
                "install onnxruntime 1.25 or later (it needs Python 3.11), or export with --precision fp32",
                version,
                manifest.precision,
            )
    elif manifest.precision == "fp16":
        logger.warning(
            "ONNX Runtime's CPU computes float16 graphs slowly; to run here, export with --precision int8"
        )
