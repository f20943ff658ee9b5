"""The demo: its services start and stop, its figures are those of the runs, and the whole of it runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from rich.console import Console

pytest.importorskip("torch", reason="the demo runs every part")

from acespec.bench.commands import until_terminated
from acespec.bench.demo import Comparison, DemoOptions, Run, is_made_with
from acespec.bench.demo_report import comparison_table, introduce, time_table, verdict
from acespec.bench.processes import Service
from acespec.bench.relay import Traffic
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.request import FinishReason
from acespec.edge_runtime.statistics import GenerationMetrics
from acespec.errors import AcespecError
from acespec.export.options import ExportOptions, default_quantization
from tiny_bundle import tiny_bundle

RELAY = ("wan-relay", "--target", "127.0.0.1:1", "--listen")


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def process_id(service: Service) -> int:
    assert service.process is not None
    return service.process.pid


async def test_a_service_tells_where_it_is_and_ends_with_its_block() -> None:
    async with Service(*RELAY, "127.0.0.1:0") as service:
        host, port = service.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        process = process_id(service)
        assert is_alive(process)
    assert not is_alive(process)


async def test_a_service_ends_although_its_block_failed() -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with Service(*RELAY, "127.0.0.1:0") as service:
            process = process_id(service)
            raise ZeroDivisionError
    assert not is_alive(process)


async def test_a_service_that_cannot_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service(*RELAY, f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(AcespecError, match="'acespec wan-relay' ended: cannot listen on"):
            await service.__aenter__()


async def test_a_service_that_dies_is_noticed_when_its_next_line_is_wanted() -> None:
    async with Service(*RELAY, "127.0.0.1:0") as service:
        os.kill(process_id(service), signal.SIGKILL)
        with pytest.raises(AcespecError, match="'acespec wan-relay' ended: it said nothing"):
            await service.line()


def test_a_bundle_made_otherwise_is_made_again() -> None:
    bundle = tiny_bundle()
    fingerprint = bundle.manifest.source_fingerprint
    options = ExportOptions(buckets=(1, 4, 16), prefill_chunk=32)
    assert is_made_with(bundle, fingerprint, options)
    assert not is_made_with(bundle, "another", options)
    for other in (
        ExportOptions(buckets=(1, 4), prefill_chunk=32),
        ExportOptions(buckets=(1, 4, 16), prefill_chunk=64),
        ExportOptions(buckets=(1, 4, 16), prefill_chunk=32, graph="ort"),
        ExportOptions(buckets=(1, 4, 16), prefill_chunk=32, precision="int8"),
        ExportOptions(buckets=(1, 4, 16), prefill_chunk=32, top_k=9),
    ):
        assert not is_made_with(bundle, fingerprint, other)
    quantized = bundle.manifest.model_copy(
        update={"precision": "int8", "quantization": default_quantization("int8", "portable")}
    )
    int8 = ExportOptions(buckets=(1, 4, 16), prefill_chunk=32, precision="int8")
    assert is_made_with(replace(bundle, manifest=quantized), fingerprint, int8)
    asymmetric = quantized.model_copy(update={"quantization": default_quantization("int8", "ort")})
    assert not is_made_with(replace(bundle, manifest=asymmetric), fingerprint, int8)


def test_sigterm_lets_what_was_started_be_stopped() -> None:
    stopped = []

    async def run_for_ever() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("services")

    with pytest.raises(SystemExit) as exit_status:
        asyncio.run(until_terminated(run_for_ever()))
    assert exit_status.value.code == 128 + signal.SIGTERM
    assert stopped == ["services"]


def make_run(tokens: list[int], tokens_per_s: float, **changes: float | None) -> Run:
    figures: dict[str, object] = {field.name: 1.0 for field in fields(GenerationMetrics)}
    figures |= {"tokens": len(tokens), "tokens_per_s": tokens_per_s, "total_ms": 1000.0, **changes}
    metrics = GenerationMetrics(**figures)  # type: ignore[arg-type]
    return Run(GenerationResult(tokens, FinishReason.LENGTH, metrics), "text", Traffic(up=300, down=200))


def make_console() -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, width=80, highlight=False), screen


def shown(*renderables: object) -> str:
    console, screen = make_console()
    for renderable in renderables:
        console.print(renderable)
    return screen.getvalue()


def row(text: str, name: str) -> list[str]:
    """The cells of the row of that name, which must all be on its line."""
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines()]
    (cells,) = [cells[1:] for cells in rows if cells and cells[0] == name]
    return cells


def test_identical_texts_are_said_to_be_so_with_the_ratio_of_speeds() -> None:
    comparison = Comparison(DemoOptions(), *(make_run([1, 2], speed) for speed in (9.0, 12.0, 6.0)))
    assert comparison.identical
    assert " ".join(shown(verdict(comparison)).split()) == (
        "The texts are identical, all 2 tokens. Rounds were 1.50 times as fast as cloud-only decoding, "
        "the race 2.00 times."
    )


@pytest.mark.parametrize("odd", ["rounds", "race", "cloud_only"])
def test_texts_that_differ_are_called_a_bug(odd: str) -> None:
    runs = {name: make_run([1, 3 if name == odd else 2], 9.0) for name in ("rounds", "race", "cloud_only")}
    comparison = Comparison(DemoOptions(), **runs)
    assert not comparison.identical
    assert shown(verdict(comparison)).startswith("The texts differ: that is a bug")


def test_the_tables_show_the_runs_figures() -> None:
    rounds = make_run(
        [1, 2], 9.25, acceptance=0.625, hit_rate=0.84, target_forwards_per_token=0.47, waiting_ms=250.0
    )
    race = make_run([1, 2], 13.0, acceptance=None, hit_rate=None, target_forwards_per_token=0.5)
    cloud_only = make_run([1, 2], 6.5, acceptance=None, hit_rate=None)
    comparison = Comparison(DemoOptions(), rounds, race, cloud_only)
    text = shown(comparison_table(comparison), time_table(rounds.result.metrics))
    assert re.search(r"rounds\W+race\W+cloud only", text)
    assert row(text, "tokens/s") == ["9.25", "13.00", "6.50"]
    assert row(text, "relative to cloud only") == ["1.42", "2.00", "1.00"]
    assert row(text, "drafted tokens accepted") == ["62%", "-", "-"]
    assert row(text, "rounds answered by the tree") == ["84%", "-", "-"]
    assert row(text, "target forwards per token") == ["0.47", "0.50", "1.00"]
    assert row(text, "TCP bytes up per token") == ["150.0", "150.0", "150.0"]
    assert row(text, "waiting for the cloud") == ["250", "25.0%"]


@pytest.mark.parametrize(("pace", "expected"), [(146.0, "at least 146 ms"), (None, "as fast as")])
def test_the_demo_says_whether_it_is_paced(pace: float | None, expected: str) -> None:
    console, screen = make_console()
    introduce(console, DemoOptions(pace_forward_ms=pace))
    assert expected in screen.getvalue()


@pytest.mark.real_model
@pytest.mark.timeout(900)
def test_the_demo_runs_and_its_texts_are_identical() -> None:
    command = [sys.executable, "-m", "acespec", "demo", "--no-pace", "--max-new-tokens", "24", "--rtt", "5"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The texts are identical, all 24 tokens." in result.stdout
    _, race, cloud_only = (float(cell) for cell in row(result.stdout, "target forwards per token"))
    assert race <= cloud_only == 1.0
