"""The verifier's metrics: they count what was reported, with a bounded number of series, and are served."""

from __future__ import annotations

import inspect
import itertools
import math
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from acespec import __version__
from acespec.cloud_verifier.engine import TargetInfo
from acespec.cloud_verifier.metrics import OTHER, SECONDS, PrometheusObserver
from acespec.cloud_verifier.metrics_server import serve_metrics
from acespec.cloud_verifier.observer import CLOSE_REASONS, BatchReport, Observer, RaceReport, RoundReport
from acespec.errors import AcespecError
from acespec.wire import ErrorCode
from observed_session import ACCEPTED, CHAINS, DECODED, FORWARD_S, PROMPT, observed_session

INFO = TargetInfo("smollm2", "f", "v", 100, 64, kv_bytes_per_token=10, kv_tokens=500)

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> Samples:
    """The values served, by name and sorted labels, as ``("name", "label=value", ...)``."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def served(observer: PrometheusObserver) -> Samples:
    return samples(generate_latest(observer.registry).decode())


def total(values: Samples, name: str) -> float:
    """The sum of all series of ``name``."""
    return sum(value for key, value in values.items() if key[0] == name)


def test_no_series_tells_when_it_was_made() -> None:
    observer = PrometheusObserver(INFO)
    observer.opened("acme")
    names = {key[0] for key in served(observer)}
    assert "acespec_verifier_sessions_opened_total" in names
    assert not [name for name in names if name.endswith("_created")]


seconds = st.floats(0.0, 60.0)
tenants = st.sampled_from(["acme", "zeta", "anonymous"])
rounds = st.builds(
    lambda tenant, drafted, share, queue, compute: RoundReport(
        "5e" * 16, tenant, drafted, int(drafted * share), 100.0, 100.0 + queue, 100.0 + queue + compute
    ),
    tenants,
    st.integers(0, 8),
    st.floats(0.0, 1.0),
    seconds,
    seconds,
)
batches = st.builds(
    lambda sequences, tokens, prefill, compute: BatchReport(
        sequences, tokens + prefill, prefill, 100.0, 100.0 + compute
    ),
    st.integers(1, 300),
    st.integers(1, 500),
    st.integers(0, 500),
    seconds,
)


@given(reports=st.lists(rounds, max_size=30))
def test_rounds_are_counted_by_tenant(reports: list[RoundReport]) -> None:
    observer = PrometheusObserver(INFO)
    for report in reports:
        observer.round(report)
    values = served(observer)
    for tenant in {report.tenant for report in reports}:
        own = [report for report in reports if report.tenant == tenant]
        counted = {
            name: values[(f"acespec_verifier_{name}_total", f"tenant={tenant}")]
            for name in ("rounds", "drafted_tokens", "accepted_tokens", "decoded_tokens")
        }
        assert counted == {
            "rounds": sum(report.drafted > 0 for report in own),
            "drafted_tokens": sum(report.drafted for report in own),
            "accepted_tokens": sum(report.accepted for report in own),
            "decoded_tokens": sum(report.drafted == 0 for report in own),
        }
    queued = [report.started - report.arrived for report in reports]
    computed = [report.ended - report.started for report in reports]
    check_histogram(values, "acespec_verifier_round_queue_seconds", queued)
    check_histogram(values, "acespec_verifier_round_compute_seconds", computed)


def test_a_race_is_counted_by_tenant() -> None:
    observer = PrometheusObserver(INFO)
    for tenant, drafted, committed, received, ignored in [
        ("a", 0, 1, 9, 2),
        ("a", 7, 4, 0, 0),
        ("b", 3, 1, 5, 5),
    ]:
        observer.race(RaceReport("5e" * 16, tenant, drafted, committed, received, ignored, 1.0, 1.5, 1.75))
    values = served(observer)
    for tenant, expected in {"a": [2, 5, 7, 9, 2], "b": [1, 1, 3, 5, 5]}.items():
        assert [
            values[(f"acespec_verifier_race_{name}_total", f"tenant={tenant}")]
            for name in ("steps", "tokens", "checked_nodes", "received_nodes", "ignored_nodes")
        ] == expected
    check_histogram(values, "acespec_verifier_round_queue_seconds", [0.5] * 3)
    check_histogram(values, "acespec_verifier_round_compute_seconds", [0.25] * 3)


@given(reports=st.lists(batches, max_size=30))
def test_forwards_are_counted(reports: list[BatchReport]) -> None:
    observer = PrometheusObserver(INFO)
    for report in reports:
        observer.batch(report)
    values = served(observer)
    observed: dict[str, Callable[[BatchReport], float]] = {
        "forward_seconds": lambda report: report.ended - report.started,
        "batch_sequences": lambda report: report.num_sequences,
        "batch_tokens": lambda report: report.num_tokens,
    }
    for name, read in observed.items():
        check_histogram(values, f"acespec_verifier_{name}", [read(report) for report in reports])
    prefilled = sum(report.prefill_tokens for report in reports)
    assert values[("acespec_verifier_prefill_tokens_total",)] == prefilled


def check_histogram(values: Samples, name: str, observed: list[float]) -> None:
    """Fail unless each bucket holds what is not above its bound, and the sum is that of ``observed``."""
    buckets = {
        float(key[1].removeprefix("le=")): n for key, n in values.items() if key[0] == f"{name}_bucket"
    }
    assert math.inf in buckets
    assert buckets == {bound: sum(value <= bound for value in observed) for bound in buckets}
    assert values[(f"{name}_sum",)] == pytest.approx(sum(observed))


def test_a_verifiers_session_is_counted() -> None:
    observer = PrometheusObserver(INFO)
    observed_session(observer)
    values = served(observer)
    counted = {
        "rounds": len(CHAINS),
        "drafted_tokens": sum(CHAINS),
        "accepted_tokens": ACCEPTED,
        "decoded_tokens": DECODED,
        "prefill_tokens": len(PROMPT) - 1,
        "sessions_opened": 1,
        "sessions_closed": 1,
        "refused": 0,
    }
    assert {name: total(values, f"acespec_verifier_{name}_total") for name in counted} == counted
    forwards = values[("acespec_verifier_forward_seconds_count",)]
    assert values[("acespec_verifier_forward_seconds_sum",)] == pytest.approx(FORWARD_S * forwards)
    computed = FORWARD_S * (len(CHAINS) + DECODED)
    assert values[("acespec_verifier_round_compute_seconds_sum",)] == pytest.approx(computed)
    assert values[("acespec_verifier_sessions", "state=attached")] == 0


def test_buckets_reach_from_a_tenth_of_a_millisecond_to_half_a_minute() -> None:
    assert (SECONDS[0], SECONDS[-1]) == (1e-4, 30.0)
    ratios = [after / before for before, after in itertools.pairwise(SECONDS)]
    assert all(2.0 <= ratio <= 3.0 + 1e-9 for ratio in ratios)


def test_sessions_are_counted_by_how_they_went() -> None:
    observer = PrometheusObserver(INFO)
    for count, report in enumerate((observer.opened, observer.resumed, observer.busy, observer.evicted), 1):
        for _ in range(count):
            report("acme")
    observer.closed("acme", "expired")
    values = served(observer)
    assert [
        values[(f"acespec_verifier_{name}_total", "tenant=acme")]
        for name in ("sessions_opened", "sessions_resumed", "busy", "evictions")
    ] == [1, 2, 3, 4]
    closed = {key[1]: value for key, value in values.items() if key[0].endswith("sessions_closed_total")}
    assert closed["reason=expired"] == 1
    assert sum(closed.values()) == 1
    assert set(closed) == {f"reason={reason}" for reason in CLOSE_REASONS}


def test_every_refusal_has_a_series_before_the_first_one() -> None:
    """Prometheus sees no increase in a series that begins with 1."""
    observer = PrometheusObserver(INFO)
    observer.refused("RESOURCE_EXHAUSTED")
    refused = {key[1]: value for key, value in served(observer).items() if key[0].endswith("refused_total")}
    expected = {f"code={code.value}": 0.0 for code in ErrorCode}
    assert refused == {**expected, "code=RESOURCE_EXHAUSTED": 1.0}


def test_usage_is_told_in_tokens_and_bytes() -> None:
    observer = PrometheusObserver(INFO)
    observer.usage(attached=4, parked=2, kv_tokens=123)
    values = served(observer)
    assert values[("acespec_verifier_sessions", "state=attached")] == 4
    assert values[("acespec_verifier_sessions", "state=parked")] == 2
    told = [
        values[(f"acespec_verifier_kv_{name}",)]
        for name in ("used_tokens", "used_bytes", "capacity_tokens", "capacity_bytes")
    ]
    assert told == [123, 1230, 500, 5000]


def test_an_engine_without_a_bound_has_infinite_room() -> None:
    values = served(PrometheusObserver(TargetInfo("m", "f", "v", 100, 64)))
    assert values[("acespec_verifier_kv_capacity_tokens",)] == math.inf
    assert values[("acespec_verifier_kv_capacity_bytes",)] == math.inf


def test_the_release_the_model_and_the_memory_are_told() -> None:
    values = served(PrometheusObserver(INFO))
    assert values[("acespec_verifier_build_info", "model=smollm2", f"version={__version__}")] == 1
    assert values[("process_resident_memory_bytes",)] > 1_000_000


def test_tenants_beyond_the_bound_share_their_series() -> None:
    observer = PrometheusObserver(INFO, max_tenants=3)
    for index in range(10):
        for _ in range(index + 1):
            observer.opened(f"tenant{index}")
    many = len(served(observer))
    for index in range(1000):
        name = f"stranger{index}"
        observer.round(RoundReport("5e" * 16, name, 4, 1, 1.0, 1.0, 1.0))
        observer.opened(name)
        observer.resumed(name)
        observer.closed(name, "failed")
        observer.busy(name)
        observer.evicted(name)
    values = served(observer)
    assert len(values) == many, "nothing a stranger does makes a series"
    opened = {key[1]: value for key, value in values.items() if key[0].endswith("sessions_opened_total")}
    assert opened == {
        "tenant=tenant0": 1,
        "tenant=tenant1": 2,
        "tenant=tenant2": 3,
        f"tenant={OTHER}": sum(range(4, 11)) + 1000,
    }
    assert total(values, "acespec_verifier_accepted_tokens_total") == 1000


def test_every_report_is_counted() -> None:
    reports = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if name[0] != "_"]
    assert len(reports) >= 9
    assert all(name in vars(PrometheusObserver) for name in reports)


def test_several_verifiers_live_in_one_process() -> None:
    first, second = PrometheusObserver(INFO), PrometheusObserver(INFO)
    first.opened("acme")
    assert total(served(first), "acespec_verifier_sessions_opened_total") == 1
    assert total(served(second), "acespec_verifier_sessions_opened_total") == 0


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return str(response.read().decode())


def test_metrics_are_served_until_stopped() -> None:
    observer = PrometheusObserver(INFO)
    server = serve_metrics("127.0.0.1", 0, observer.registry)
    try:
        observer.busy("acme")
        assert samples(fetch(server.address))[("acespec_verifier_busy_total", "tenant=acme")] == 1
        assert server.address.startswith("127.0.0.1:")
    finally:
        server.stop()
    with pytest.raises(OSError, match="refused"):
        fetch(server.address)


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_port_in_use_is_refused_in_one_line(host: str, address: str) -> None:
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    server = serve_metrics(host, 0, CollectorRegistry())
    try:
        port = int(server.address.removeprefix(f"{address}:"))
        with pytest.raises(
            AcespecError, match=rf"^cannot listen on {host} port {port} \(.+\); choose another --metrics-port"
        ):
            serve_metrics(host, port, CollectorRegistry())
    finally:
        server.stop()
    with socket.socket(family) as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((host, port))


def test_a_host_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(
        AcespecError, match=r"^cannot listen on a\.invalid port 0 \(.+\); choose another --metrics"
    ):
        serve_metrics("a.invalid", 0, CollectorRegistry())


def test_names_keep_to_prometheus_conventions() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here")
    observer = PrometheusObserver(INFO)
    observer.opened("acme")
    text = generate_latest(observer.registry)
    result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
