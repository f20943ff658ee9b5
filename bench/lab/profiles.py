"""How long a model's steps take on a device: what virtual time is made of, each figure with its source.

A step reads all weights once, however many tokens go through it: it costs the same until arithmetic takes
longer than reading. That width, the *knee*, is assumed, not measured, and stands in this file alone. With
weights of b bytes, a memory of W bytes/s and F operations/s a step of n tokens takes
``max(b P / W, 2 P n / F)`` for P parameters: the knee is ``b F / (2 W)``, whatever P is.

* AGX Orin, 16-bit weights, 204.8 GB/s and 42.5 dense TFLOPS: 207 tokens at the peak.
* A100 40 GB, 16-bit weights, 1555 GB/s and 312 dense TFLOPS: 201 tokens at the peak.

Kernels reach a third to two thirds of the peak; a knee of 64 and 128 leaves room for that. Beyond the knee a
step takes time in proportion. How much context a step attends to is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from acespec.errors import AcespecError
from acespec.models.latency import LatencyProfile

ORIN_KNEE = 64
A100_KNEE = 128


@dataclass(frozen=True)
class StepLatency:
    """Milliseconds of one step by its number of tokens: linear between ``points``, in proportion beyond."""

    points: tuple[tuple[int, float], ...]
    """(tokens, ms), ascending in tokens."""

    def ms(self, num_tokens: int) -> float:
        """Milliseconds of a step of ``num_tokens`` tokens."""
        widths, times = zip(*self.points, strict=True)
        if num_tokens > widths[-1]:
            return float(times[-1] * num_tokens / widths[-1])
        return float(np.interp(num_tokens, widths, times))


def flat_to(knee: int, step_ms: float) -> StepLatency:
    """``step_ms`` for up to ``knee`` tokens, in proportion beyond."""
    return StepLatency(((1, step_ms), (knee, step_ms)))


@dataclass(frozen=True)
class DeviceProfile:
    """An edge device with its draft model."""

    name: str
    latency: StepLatency
    source: str
    """Where the one-token step time comes from."""

    def step_ms(self, num_tokens: int) -> float:
        """Milliseconds of one draft step."""
        return self.latency.ms(num_tokens)


@dataclass(frozen=True)
class TargetProfile:
    """Cloud hardware with its target model."""

    name: str
    latency: StepLatency
    num_layers: int
    hidden_size: int
    source: str

    def forward_ms(self, num_tokens: int) -> float:
        """Milliseconds of one target forward over so many tokens."""
        return self.latency.ms(num_tokens)


def _orin(name: str, step_ms: float, published: str) -> DeviceProfile:
    return DeviceProfile(
        f"orin-{name}", flat_to(ORIN_KNEE, step_ms), f"{published} on Jetson AGX Orin, as published"
    )


def _a100(name: str, forward_ms: float, num_layers: int, hidden_size: int, source: str) -> TargetProfile:
    return TargetProfile(
        f"a100-{name}", flat_to(A100_KNEE, forward_ms), num_layers, hidden_size, f"AceSpec Table I: {source}"
    )


EDGE_PROFILES: Mapping[str, DeviceProfile] = {
    profile.name: profile
    for profile in (
        _orin("qwen3-0.6b", 8.5, "Qwen3-0.6B: 117 tokens/s"),
        _orin("qwen3-1.7b", 22.0, "Qwen3-1.7B: 46 tokens/s"),
        _orin("llama-1b", 15.0, "Llama-3.2-1B: 65 tokens/s"),
    )
}
CLOUD_PROFILES: Mapping[str, TargetProfile] = {
    profile.name: profile
    for profile in (
        _a100("32b", 72.0, 64, 5120, "13.9 tokens/s autoregressive (Qwen3-32B, 4x A100 40 GB)"),
        _a100("70b", 146.0, 80, 8192, "6.87 tokens/s autoregressive (Llama-3.1-70B, 4x A100 40 GB)"),
    )
}


@dataclass(frozen=True)
class ProfilePair:
    """What stands at the two ends of the link."""

    edge: DeviceProfile
    cloud: TargetProfile

    @property
    def name(self) -> str:
        return f"{self.edge.name}/{self.cloud.name}"


def parse_profiles(text: str) -> ProfilePair:
    """The profiles of ``EDGE/CLOUD``, such as ``orin-qwen3-0.6b/a100-70b``.

    Raises ``AcespecError`` listing the known names.
    """
    edge, _, cloud = text.partition("/")
    if edge not in EDGE_PROFILES or cloud not in CLOUD_PROFILES:
        raise AcespecError(
            f"{text!r} is no pair of profiles; write EDGE/CLOUD, edge: {', '.join(EDGE_PROFILES)}; "
            f"cloud: {', '.join(CLOUD_PROFILES)}"
        )
    return ProfilePair(EDGE_PROFILES[edge], CLOUD_PROFILES[cloud])


def measured_device(profile: LatencyProfile, context: int) -> DeviceProfile:
    """A device as its bundle's latency profile has it, behind ``context`` tokens."""
    steps = sorted((bucket, profile.step_ms(bucket, context)) for bucket in profile.buckets)
    return DeviceProfile(
        "demo-measured",
        StepLatency(tuple(steps)),
        f"measured on {profile.machine} ({profile.runs_on}, {profile.threads} threads), context {context}",
    )


def measured_target(
    points: Sequence[tuple[int, float]], num_layers: int, hidden_size: int, source: str
) -> TargetProfile:
    """A target from measured ``(tokens, ms)`` points."""
    return TargetProfile("demo-measured", StepLatency(tuple(sorted(points))), num_layers, hidden_size, source)
