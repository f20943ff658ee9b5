"""``acespec serve`` as a process: ready line, generation, health, taken port, signals, bad arguments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acespec.cloud_verifier.addresses import resolve
from acespec.cloud_verifier.tenants_file import new_token, token_hash
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.grpc_transport import LinkSettings, VerifierChannel
from acespec.wire import SessionError
from pki import write_pki
from tiny_target import write_target_folder
from verifier_client import VerifierClient, decoded_text, open_request

SERVE = (sys.executable, "-m", "acespec", "serve")


@dataclass
class Served:
    """A server process, and what its ready line says."""

    process: subprocess.Popen[str]
    ready: str
    address: str
    folder: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    """A server process of the tiny model in ``folder``, ready."""
    process = subprocess.Popen(
        [*SERVE, "--model", str(folder), "--port", "0", "--threads", "1", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        found = re.search(r"ready on (\S+) ", ready)
        assert found is not None, f"{ready!r} {process.communicate()}"
        yield Served(process, ready, found[1], folder)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_target_folder(tmp_path / "tiny-llama")


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    """A paced server of a tiny model, ready."""
    with serving(folder, "--pace-forward-ms", "2.5") as server:
        yield server


async def generated(
    address: str, engine: TransformersEngine, security: ChannelSecurity | None = None
) -> list[int]:
    """A text drawn by the server, partly in rounds."""
    async with VerifierChannel(address, LinkSettings(security or ChannelSecurity())) as channel:
        client = VerifierClient(channel.session(), open_request(engine, [5, 6, 7]))
        await client.begin()
        await client.decode(4)
        await client.round([1, 2, 3])
        await client.decode(client.remaining)
        await client.link.close()
    return client.committed


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service="acespec.v1.Verifier"))).status


def test_a_server_from_its_ready_line_to_its_end(served: Served) -> None:
    assert served.ready == (
        f"acespec serve: ready on 127.0.0.1:{served.port} (model tiny-llama, float32, paced 2.5 ms a forward)"
    )
    assert asyncio.run(health(served.address)) == health_pb2.HealthCheckResponse.SERVING
    engine = TransformersEngine.load(served.folder)
    expected = asyncio.run(decoded_text(engine, open_request(engine, [5, 6, 7])))
    assert asyncio.run(generated(served.address, engine)) == expected

    second = run_serve("--model", str(served.folder), "--port", str(served.port))
    assert second.returncode == 1
    assert one_line(second) == (
        f"acespec: error: cannot listen on 127.0.0.1 port {served.port} (Address already in use); "
        "choose another --port, 0 for any that is free, or another --host"
    )

    served.process.send_signal(signal.SIGTERM)
    out, err = served.process.communicate(timeout=60)
    assert (served.process.returncode, out, err) == (0, "", "")
    resolve("127.0.0.1", served.port)


def test_signals_that_come_too_often_change_nothing(folder: Path) -> None:
    """However many come: it ends in order and says nothing."""
    with serving(folder) as served:
        for _ in range(200):
            served.process.send_signal(signal.SIGINT)
            served.process.send_signal(signal.SIGTERM)
        out, err = served.process.communicate(timeout=60)
        assert err == ""
        assert (served.process.returncode, out) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_it_is_ready_ends_it_silently(number: signal.Signals, tmp_path: Path) -> None:
    tokens = tmp_path / "tenants.toml"
    os.mkfifo(tokens)
    process = subprocess.Popen(
        [*SERVE, "--model", "m", "--port", "0", "--tokens", str(tokens)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with tokens.open("w"):  # waits until the other end is read
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -number


def test_taken_ports_are_told_before_the_model_and_hinder_no_check_of_a_configuration() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = (("--port", port), ("--port", "0", "--metrics-port", port))
        for arguments, option in zip(ports, ("--port", "--metrics-port"), strict=True):
            assert one_line(run_serve("--model", "no-such-model", *arguments)) == (
                f"acespec: error: cannot listen on 127.0.0.1 port {port} (Address already in use); "
                f"choose another {option}, 0 for any that is free, or another {option[:-4]}host"
            )
            checked = run_serve("--model", "no-such-model", *arguments, "--print-config")
            assert (checked.returncode, checked.stderr) == (0, "")
            assert f"port = {port}  # command line" in checked.stdout


def test_a_protected_server_configured_by_file_and_environment(folder: Path, tmp_path: Path) -> None:
    write_pki(tmp_path)
    token = new_token()
    tenants, config = tmp_path / "tenants.toml", tmp_path / "verifier.toml"
    tenants.write_text(f'[tenants.acme]\n[[tokens]]\ntenant = "acme"\nsha256 = "{token_hash(token)}"\n')
    config.write_text(
        f'tls_cert = "{tmp_path}/server.pem"\ntls_key = "{tmp_path}/server.key"\nlog_format = "json"\n'
    )
    variables = {"ACESPEC_SERVE_CONFIG": str(config), "ACESPEC_SERVE_TOKENS": str(tenants)}
    with serving(
        folder, "--host", "localhost", "--metrics-port", "0", "--kv-memory", "1MiB", **variables
    ) as served:
        found = re.search(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\)$", served.ready)
        assert found is not None, served.ready
        known = ChannelSecurity(tls=True, ca=tmp_path / "ca.pem", token=token)
        engine = TransformersEngine.load(folder)
        expected = asyncio.run(decoded_text(engine, open_request(engine, [5, 6, 7])))
        assert asyncio.run(generated(served.address, engine, known)) == expected
        with pytest.raises(SessionError, match="does not know you; its log has the reason under"):
            asyncio.run(generated(served.address, engine, replace(known, token=new_token())))
        with urllib.request.urlopen(found[1]) as answer:  # noqa: S310 - the server just started
            metrics = answer.read().decode()
        assert 'acespec_verifier_sessions_opened_total{tenant="acme"} 1.0' in metrics
        assert "acespec_verifier_kv_capacity_bytes 1.04" in metrics
        assert 'acespec_verifier_refused_total{code="UNAUTHENTICATED"} 1.0' in metrics
        served.process.send_signal(signal.SIGTERM)
        out, err = served.process.communicate(timeout=60)
        assert (served.process.returncode, out) == (0, "")
        (record,) = [json.loads(line) for line in err.splitlines()]
        assert "was not let in: the token is not one of the file's" in record["message"]


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=120, check=False)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The error, which must be all that was printed."""
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()


def test_an_unknown_model_is_one_line() -> None:
    result = run_serve("--model", "no-such-model", "--port", "0")
    assert result.returncode == 1
    assert "no-such-model" in one_line(result)


def test_help_names_the_options_without_torch() -> None:
    code = (
        "import sys; from acespec.cli import acespec\n"
        "try: acespec(['serve', '--help'], prog_name='acespec')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert not {'torch', 'transformers', 'grpc'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    for option in ("--model", "--tls-cert", "--max-sessions", "--config"):
        assert option in result.stdout
