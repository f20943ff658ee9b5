"""The profiles hold what was published, and say what is assumed."""

from __future__ import annotations

import pytest

from acespec.bench.lab.profiles import (
    CLOUD_PROFILES,
    EDGE_PROFILES,
    StepLatency,
    flat_to,
    measured_device,
    measured_target,
    parse_profiles,
)
from acespec.errors import AcespecError
from acespec.models import PAIRS
from acespec.models.latency import LatencyPoint, LatencyProfile


@pytest.mark.parametrize(
    ("name", "published_per_s"),
    [("orin-qwen3-0.6b", 117.0), ("orin-qwen3-1.7b", 46.0), ("orin-llama-1b", 65.0)],
)
def test_a_devices_step_is_one_over_its_published_speed(name: str, published_per_s: float) -> None:
    profile = EDGE_PROFILES[name]
    assert 1000.0 / profile.step_ms(1) == pytest.approx(published_per_s, rel=0.03)
    assert f"{published_per_s:g} tokens/s" in profile.source


@pytest.mark.parametrize(("name", "published_per_s"), [("a100-32b", 13.89), ("a100-70b", 6.87)])
def test_a_targets_forward_is_one_over_the_papers_autoregressive_speed(
    name: str, published_per_s: float
) -> None:
    profile = CLOUD_PROFILES[name]
    assert 1000.0 / profile.forward_ms(1) == pytest.approx(published_per_s, rel=0.01)
    assert "Table I" in profile.source


def test_profiles_agree_with_the_pairs_they_stand_for() -> None:
    for pair, edge, cloud in [
        ("qwen3-0.6b-32b", "orin-qwen3-0.6b", "a100-32b"),
        ("qwen3-1.7b-32b", "orin-qwen3-1.7b", "a100-32b"),
        ("llama-3.2-1b-3.1-70b", "orin-llama-1b", "a100-70b"),
    ]:
        assert PAIRS[pair].draft_step_ms == EDGE_PROFILES[edge].step_ms(1)
        assert PAIRS[pair].target_step_ms == CLOUD_PROFILES[cloud].forward_ms(1)


def test_a_step_is_flat_to_the_knee_and_proportional_beyond() -> None:
    latency = flat_to(64, 8.5)
    assert [latency.ms(width) for width in (1, 20, 64)] == [8.5, 8.5, 8.5]
    assert latency.ms(128) == 17.0
    assert latency.ms(65) > 8.5


def test_measured_points_are_joined_by_lines() -> None:
    latency = StepLatency(((1, 4.0), (5, 8.0), (9, 8.0)))
    assert [latency.ms(width) for width in (1, 2, 5, 7, 18)] == [4.0, 5.0, 8.0, 8.0, 16.0]


def test_profiles_are_named_by_edge_and_cloud() -> None:
    profiles = parse_profiles("orin-llama-1b/a100-70b")
    assert (profiles.edge.step_ms(1), profiles.cloud.forward_ms(1)) == (15.0, 146.0)
    assert profiles.name == "orin-llama-1b/a100-70b"
    for wrong in ("", "orin-llama-1b", "a100-70b/orin-llama-1b", "orin-llama-1b/a100-70b/x"):
        with pytest.raises(
            AcespecError, match=r"write EDGE/CLOUD, edge: orin-qwen3-0.6b, .*; cloud: a100-32b"
        ):
            parse_profiles(wrong)


def test_a_bundles_own_latencies_make_a_profile() -> None:
    points = [LatencyPoint(bucket=b, context=c, median_ms=b + c / 100) for b in (1, 8) for c in (0, 200)]
    profile = LatencyProfile(machine="a machine", threads=2, points=tuple(points))
    device = measured_device(profile, context=100)
    assert [device.step_ms(width) for width in (1, 8, 16)] == [2.0, 9.0, 18.0]
    assert "a machine" in device.source
    target = measured_target([(5, 60.0), (1, 50.0)], 30, 576, "measured")
    assert (target.forward_ms(3), target.hidden_size) == (55.0, 576)
