"""The rows of a graph on another device, with host memory in the device's place: the whole engine on them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.edge_runtime import ort_engine, ort_graph
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.ort_rows import DevicePortableRows
from tiny_bundle import tiny_bundle


class HostCuda:
    """The calls of `Cuda` that rows need, over the host's memory; copies happen when they are waited for."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, int, int, int, int, int]] = []

    def create_stream(self) -> int:
        return 1

    def fill_zeros(self, address: int, num_bytes: int, stream: int) -> None:
        ctypes.memset(address, 0, num_bytes)

    def copy_planes(self, *copy: int) -> None:
        target, target_pitch, source, source_pitch, width, height, _ = copy
        self.pending.append((target, target_pitch, source, source_pitch, width, height))

    def synchronize(self, stream: int) -> None:
        for target, target_pitch, source, source_pitch, width, height in self.pending:
            for plane in range(height):
                ctypes.memmove(target + plane * target_pitch, source + plane * source_pitch, width)
        self.pending = []


@functools.cache
def device_engine() -> OnnxRuntimeEngine:
    """An engine that believes it runs on CUDA."""
    variant = tiny_bundle().graph("portable")
    open_session = ort_graph.open_session
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort_engine, "choose_graph", lambda *_: ("cuda", variant))
        patch.setattr(ort_engine, "load_cuda", HostCuda)
        patch.setattr(
            ort_engine, "DevicePortableRows", lambda *arguments: DevicePortableRows(*arguments[:4], "cpu")
        )
        patch.setattr(
            ort_graph,
            "open_session",
            lambda path, settings: open_session(path, dataclasses.replace(settings, provider="cpu")),
        )
        return OnnxRuntimeEngine(tiny_bundle(), tree_rows=64)


@functools.cache
def host_engine() -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(tiny_bundle(), tree_rows=64)


def both(call: str, *arguments: Any) -> list[Any]:
    return [getattr(engine, call)(*arguments) for engine in (device_engine(), host_engine())]


@given(st.data())
@settings(max_examples=25)
def test_any_history_of_steps_compactions_and_rollbacks_gives_the_same_logits(data: st.DataObject) -> None:
    both("truncate", 0)
    for _ in range(data.draw(st.integers(1, 6))):
        past = host_engine().num_rows
        action = data.draw(st.sampled_from(["step", "step", "compact", "truncate"]))
        if action == "compact":
            prefix = data.draw(st.integers(0, past))
            kept = sorted(data.draw(st.sets(st.integers(prefix, past - 1)))) if prefix < past else []
            both("compact", prefix, kept)
        elif action == "truncate":
            both("truncate", data.draw(st.integers(0, past)))
        else:
            last_only = data.draw(st.booleans())
            count = data.draw(st.integers(1, 32 if last_only else 16))
            generator = np.random.default_rng(data.draw(st.integers(0, 999)))
            mask = generator.random((count, past + count)) < 0.5
            mask[np.arange(count), past + np.arange(count)] = True
            if past + count > host_engine().max_rows:
                continue
            tokens, positions = generator.integers(257, size=count), generator.integers(96, size=count)
            actual, expected = both("forward", tokens, positions, mask, last_only)
            np.testing.assert_allclose(actual.values, expected.values, rtol=0, atol=1e-4)
    assert device_engine().num_rows == host_engine().num_rows
