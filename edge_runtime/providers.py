"""ONNX Runtime's execution providers: which of the listed ones really run on this machine.

``onnxruntime.get_available_providers()`` lists what was compiled in. A CUDA build lists CUDA on a machine
without a GPU or without cuDNN, and a session asked for it there runs on the CPU with only a line in a log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from acespec.errors import AcespecError

logger = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
PROVIDERS = {"cpu": CPU, "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""What an engine may be asked to run on -> ONNX Runtime's name for it."""
SAMPLE = np.array([[1, 2], [3, 4]], np.float32)
SILENT = 4
"""ONNX Runtime's severity of fatal messages: a trial that fails says why itself."""


class ProviderError(AcespecError):
    """A provider that was asked for by name does not run here."""


@dataclass(frozen=True)
class ProviderTrial:
    """How a provider did on a model of one matrix product."""

    name: str
    """ONNX Runtime's name, such as ``CUDAExecutionProvider``."""
    runs: bool
    reason: str
    """Why it does not run, in one line; empty when it does."""


def try_provider(name: str) -> ProviderTrial:
    """Run a matrix product on provider ``name`` and nowhere else. Never raises for a provider that fails.

    A broken driver may end the process: who must not die tries it in another. TensorRT takes a few seconds,
    for it builds an engine.
    """
    if name not in ort.get_available_providers():
        return ProviderTrial(name, False, f"this build of onnxruntime {ort.__version__} does not have it")
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    if name != CPU:  # refuse to give the node to the CPU; naming the CPU as well would contradict this
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = ort.InferenceSession(matrix_product_model(), options, providers=[name], enable_fallback=0)
        found = session.get_providers()
        if name not in found:
            return ProviderTrial(name, False, f"ONNX Runtime uses {', '.join(found)} instead")
        (product,) = session.run(None, {"x": SAMPLE})
    except Exception as error:  # ONNX Runtime's errors share no narrower base
        return ProviderTrial(name, False, _one_line(error))
    if not np.array_equal(product, SAMPLE @ SAMPLE):
        return ProviderTrial(name, False, f"it computes {product.tolist()}, not {(SAMPLE @ SAMPLE).tolist()}")
    return ProviderTrial(name, True, "")


def choose_provider(wanted: str) -> str:
    """The key of `PROVIDERS` to run on, after a trial.

    ``auto`` takes CUDA where it is listed and runs, else the CPU, and warns when a listed one fails; TensorRT
    builds engines for minutes, so it is used only by name. Raises `ProviderError` when a provider asked for
    by name does not run.
    """
    if wanted == "cpu":
        return wanted
    name = PROVIDERS["cuda" if wanted == "auto" else wanted]
    if wanted == "auto" and name not in ort.get_available_providers():
        return "cpu"
    trial = try_provider(name)
    if trial.runs:
        return "cuda" if wanted == "auto" else wanted
    if wanted != "auto":
        raise ProviderError(
            f"ONNX Runtime cannot run on {wanted} ({trial.reason}); install what acespec doctor names, "
            "or choose --provider cpu"
        )
    logger.warning("ONNX Runtime lists %s but it does not run (%s); using the CPU", name, trial.reason)
    return "cpu"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "fallback to CPU EP has been explicitly disabled" in text:
        return "ONNX Runtime gives it no work: it did not start, or cannot multiply matrices"
    return text or type(error).__name__


def matrix_product_model() -> bytes:
    """``y = MatMul(x, x)`` over float32 ``[2, 2]``: a serialised ``ModelProto`` (onnx.proto, IR 7, opset 13).

    Written by hand because the device has no ``onnx``; a product, so that cuBLAS must load too.
    """
    node = _text(1, "x") + _text(1, "x") + _text(2, "y") + _text(4, "MatMul")
    graph = _message(1, node) + _text(2, "trial") + _message(11, _tensor("x")) + _message(12, _tensor("y"))
    return _number(1, 7) + _message(7, graph) + _message(8, _text(1, "") + _number(2, 13))


def _tensor(name: str) -> bytes:
    """A ``ValueInfoProto`` of float32 ``[2, 2]``."""
    dimension = _message(1, _number(1, 2))
    tensor = _number(1, 1) + _message(2, dimension + dimension)  # element type 1 is float32
    return _text(1, name) + _message(2, _message(1, tensor))


def _number(field: int, value: int) -> bytes:
    """A varint field. One byte holds all there is here."""
    assert 0 <= value < 128, value
    return bytes([field << 3, value])


def _message(field: int, body: bytes) -> bytes:
    """A length-delimited field."""
    assert len(body) < 128, len(body)
    return bytes([field << 3 | 2, len(body)]) + body


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
