"""The layer over the CUDA runtime: errors by name, memory as NumPy sees it."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from acespec.edge_runtime.cuda import ALIGNMENT, Cuda, CudaError, aligned, load_cuda
from acespec.edge_runtime.cuda_bindings import CudaBindings
from fake_cuda import Code, FakeCuda

CALLS = sorted(name for name in vars(CudaBindings) if name.startswith("cuda"))
NAMES = sorted(name for name in CudaBindings.__annotations__ if name.startswith("cuda"))


def test_the_fake_has_every_call_that_is_used() -> None:
    assert len(CALLS) > 15
    assert all(hasattr(FakeCuda, name) for name in CALLS + NAMES)


@pytest.mark.parametrize("name", CALLS + NAMES)
def test_every_name_exists_in_the_real_bindings(name: str) -> None:
    bindings = pytest.importorskip("cuda.bindings.runtime", reason="cuda-python is not installed")
    assert hasattr(bindings, name)


def test_an_error_names_the_call_and_the_reason() -> None:
    fake = FakeCuda(capacity=1000)
    cuda = Cuda(fake)
    with pytest.raises(CudaError, match=r"cudaMalloc failed \(out of memory\)"):
        cuda.allocate(1001)
    fake.failures["cudaGetDevice"] = Code.LAUNCH_FAILURE
    with pytest.raises(CudaError, match=r"cudaGetDevice failed \(launch failure\); acespec doctor"):
        cuda.compute_capability()


def test_missing_bindings_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(CudaError, match=r"pip install .*cuda-python==12\.6"):
        load_cuda()


def test_bindings_that_are_there_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda name: fake if name == "cuda.bindings.runtime" else SimpleNamespace(),
    )
    assert load_cuda().compute_capability() == "8.7"


def test_pinned_memory_is_an_array_of_zeros_that_travels_to_the_device_and_back() -> None:
    fake = FakeCuda()
    cuda = Cuda(fake)
    stream = cuda.create_stream()
    there, back = (cuda.allocate_pinned((2, 3), np.dtype(np.float16)) for _ in range(2))
    assert not there.any()
    there[:] = np.arange(6).reshape(2, 3)
    address = cuda.allocate(there.nbytes)
    cuda.copy_to_device(address, there, stream)
    cuda.copy_to_host(back, address, stream)
    cuda.synchronize(stream)
    np.testing.assert_array_equal(back, np.arange(6).reshape(2, 3))
    for array in (there, back):
        cuda.free_pinned(array)
    cuda.free(address)
    cuda.destroy_stream(stream)
    fake.check_nothing_is_left()


def test_a_recording_is_run_when_it_is_launched_and_not_before() -> None:
    fake = FakeCuda()
    cuda = Cuda(fake)
    stream = cuda.create_stream()
    address = cuda.allocate(8)
    cuda.begin_capture(stream)
    cuda.fill_zeros(address, 8, stream)
    executable = cuda.end_capture(stream)
    cuda.synchronize(stream)
    assert (fake.device(address, 8) == 0xFF).all()
    cuda.launch(executable, stream)
    cuda.synchronize(stream)
    assert not fake.device(address, 8).any()
    cuda.destroy_executable(executable)
    cuda.free(address)
    cuda.destroy_stream(stream)
    fake.check_nothing_is_left()


@pytest.mark.parametrize(("num_bytes", "wanted"), [(0, 0), (1, ALIGNMENT), (256, 256), (257, 512)])
def test_sizes_are_rounded_up_to_the_alignment(num_bytes: int, wanted: int) -> None:
    assert aligned(num_bytes) == wanted
