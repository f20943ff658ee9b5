"""Finding TensorRT: its Python module, what of it is used, and where its messages go.

TensorRT comes with the device (JetPack) or with its own wheels, never with this package, so the module is
imported when it is asked for and handed on as an object; tests hand on another.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from acespec.errors import AcespecError

if TYPE_CHECKING:
    import tensorrt as trt

logger = logging.getLogger(__name__)

TensorRtRuntime = Literal["tensorrt", "tensorrt-rtx"]

MODULES: dict[TensorRtRuntime, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx_bindings"}
OLDEST: dict[TensorRtRuntime, tuple[int, int]] = {"tensorrt": (10, 3), "tensorrt-rtx": (1, 7)}
"""The first version whose Python calls are those used here."""
REMEDIES: dict[TensorRtRuntime, str] = {
    "tensorrt": (
        "on a Jetson: sudo apt-get install python3-libnvinfer, and make the virtual environment with "
        "--system-site-packages"
    ),
    "tensorrt-rtx": (
        "pip install tensorrt-rtx-cu12-libs==1.7.1.116 tensorrt-rtx-cu12-bindings==1.7.1.116 (Linux, x86-64)"
    ),
}


class TensorRtError(AcespecError):
    """TensorRT is missing, refuses a graph or a plan, or fails at a step."""


class TensorRtModule(Protocol):
    """The module: what is used of it, by name. `typings/tensorrt` has the calls."""

    __version__: str
    Builder: type[trt.Builder]
    BuilderFlag: type[trt.BuilderFlag]
    ComputeCapability: type[trt.ComputeCapability]
    DataType: type[trt.DataType]
    ExecutionContextAllocationStrategy: type[trt.ExecutionContextAllocationStrategy]
    ILogger: type[trt.ILogger]
    IProgressMonitor: type[trt.IProgressMonitor]
    MemoryPoolType: type[trt.MemoryPoolType]
    NetworkDefinitionCreationFlag: type[trt.NetworkDefinitionCreationFlag]
    OnnxParser: type[trt.OnnxParser]
    Runtime: type[trt.Runtime]
    TensorIOMode: type[trt.TensorIOMode]


def load_tensorrt(runtime: TensorRtRuntime) -> TensorRtModule:
    """The module of ``runtime``. Raises `TensorRtError` with what to install when it cannot be used."""
    name = MODULES[runtime]
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        cause = " ".join(str(error).split())
        raise TensorRtError(f"{runtime} cannot be imported ({cause}); {REMEDIES[runtime]}") from None
    if not hasattr(module, "Builder"):  # tensorrt-stubs puts an empty package in its place
        raise TensorRtError(
            f"{getattr(module, '__file__', name)} is not TensorRT; remove the package that put it there "
            f"(pip uninstall tensorrt-stubs), then {REMEDIES[runtime]}"
        )
    tensorrt = cast("TensorRtModule", module)
    if version_of(tensorrt) < OLDEST[runtime]:
        oldest = ".".join(map(str, OLDEST[runtime]))
        raise TensorRtError(
            f"{runtime} {tensorrt.__version__} is too old, {oldest} is needed; {REMEDIES[runtime]}"
        )
    return tensorrt


def version_of(tensorrt: TensorRtModule) -> tuple[int, int]:
    """Major and minor version."""
    major, minor = tensorrt.__version__.split(".")[:2]
    return int(major), int(minor)


def message_logger(tensorrt: TensorRtModule, on_error: Callable[[str], object]) -> trt.ILogger:
    """A logger of TensorRT's that passes messages to this program's log, and errors to ``on_error`` too.

    It must live as long as anything that was made with it. TensorRT's errors are logged as DEBUG: whoever
    made the failing call reports them.
    """
    severity = tensorrt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.DEBUG,
        severity.ERROR: logging.DEBUG,
        severity.WARNING: logging.INFO,
        severity.INFO: logging.DEBUG,
    }

    base: Any = tensorrt.ILogger

    class MessageLogger(base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self) -> None:
            base.__init__(self)  # the binding wants it called by name

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            level = levels.get(severity)
            if level is None:  # VERBOSE: thousands of lines a build
                return
            logger.log(level, "TensorRT: %s", msg)
            if severity in (tensorrt.ILogger.Severity.INTERNAL_ERROR, tensorrt.ILogger.Severity.ERROR):
                on_error(" ".join(msg.split()))

    instance: trt.ILogger = MessageLogger()
    return instance
