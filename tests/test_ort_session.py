"""Opening a graph in ONNX Runtime: what it runs with, what is refused, and what is said to be slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from acespec.edge_runtime.ort_session import (
    EngineError,
    SessionSettings,
    open_session,
    provider_options,
    warn_if_slow,
)
from acespec.edge_runtime.providers import matrix_product_model
from acespec.models.manifest import BundleManifest, Quantization

INT4 = Quantization(bits=4, block=32, symmetric=False, head_bits=8)
INT8 = Quantization(bits=8, block=32, symmetric=False, head_bits=8)
PRODUCTS = Quantization(bits=8, block=None, symmetric=True, head_bits=8, activation_bits=8)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "product.onnx"
    path.write_bytes(matrix_product_model())
    return path


@pytest.mark.parametrize(
    ("precision", "quantization", "version", "warned"),
    [
        ("int8", INT8, "1.24.4", True),
        ("int8", INT8, "1.25.0", False),
        ("int4", INT4, "1.23.2", True),
        ("int4", INT4.model_copy(update={"head_bits": 4}), "1.23.2", False),
        ("int4", INT4.model_copy(update={"head_bits": None}), "1.23.2", False),
        ("int8", PRODUCTS, "1.23.2", False),
        ("fp32", None, "1.23.2", False),
    ],
)
def test_a_runtime_without_the_kernel_is_named(
    caplog: pytest.LogCaptureFixture,
    precision: str,
    quantization: Quantization | None,
    version: str,
    warned: bool,
) -> None:
    warn_if_slow(BundleManifest.model_construct(precision=precision, quantization=quantization), version)
    assert (f"onnxruntime {version} has no kernel" in caplog.text) == warned


def test_float16_is_said_to_be_slow_here(caplog: pytest.LogCaptureFixture) -> None:
    warn_if_slow(BundleManifest.model_construct(precision="fp16", quantization=None))
    assert "float16 graphs slowly" in caplog.text


@pytest.mark.parametrize(("threads", "spin", "spins"), [(1, True, "0"), (2, True, "1"), (2, False, "0")])
def test_threads_spin_only_where_there_are_several_and_it_was_asked_for(
    graph: Path, threads: int, spin: bool, spins: str
) -> None:
    session = open_session(graph, SessionSettings(threads=threads, spin=spin, accuracy_level=1))
    options = session.get_session_options()
    assert options.intra_op_num_threads == threads
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins
    assert options.get_session_config_entry("session.qdq_matmulnbits_accuracy_level") == "1"


def test_a_file_that_is_no_graph_is_named_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"junk")
    with pytest.raises(EngineError, match=r"cannot load .*junk\.onnx .*export the bundle again") as caught:
        open_session(path, SessionSettings())
    assert "\n" not in str(caught.value)


def test_only_tensorrt_keeps_what_it_built() -> None:
    assert provider_options("cuda", Path("bundle/portable.onnx")) == {}
    options = provider_options("tensorrt", Path("bundle/portable.onnx"))
    assert options["trt_engine_cache_path"] == str(Path("bundle/engines"))
