"""``acespec generate`` against a real verifier process: what it prints, and one line for every bad input."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from acespec.edge_runtime import remote
from acespec.edge_runtime.commands import generate as generate_command
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.request import FinishReason
from acespec.edge_runtime.statistics import Statistics
from acespec.wire import LinkBytes
from tiny_bundle import tiny_bundle
from tiny_target import MAX_CONTEXT, write_target_folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "acespec", *arguments]


@contextlib.contextmanager
def verifier(model: Path) -> Iterator[str]:
    """A verifier of its own process; gives its address, and expects a clean end."""
    process = subprocess.Popen(
        command("serve", "--model", str(model), "--port", "0", "--threads", "1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        match = re.search(r"ready on (\S+)", ready)
        assert match is not None, ready
        yield match[1]
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with verifier(write_target_folder(tmp_path_factory.mktemp("target") / "tiny-llama")) as address:
        yield address


def generate(server: str, *arguments: str, bundle: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(
            "generate",
            "--server",
            server,
            "--draft",
            str(bundle or tiny_bundle().folder),
            "--raw",
            *arguments,
        ),
        capture_output=True,
        text=True,
        check=False,
    )


def generate_json(server: str, *arguments: str) -> dict[str, object]:
    result = generate(server, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def test_rounds_and_cloud_give_the_same_text_over_grpc(server: str) -> None:
    common = ("-p", "Hello", "--max-new-tokens", "40", "--seed", "11")
    rounds = generate_json(server, *common, "--gamma", "3")
    cloud = generate_json(server, *common, "--policy", "cloud")
    assert rounds["tokens"] == cloud["tokens"]
    assert rounds["text"] == cloud["text"]
    metrics = rounds["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["rounds"] > 0
    assert metrics["acceptance"] > 0.9, "the draft is the target itself"
    assert metrics["target_forwards_per_token"] < 0.6


def test_auto_gives_the_clouds_text_over_grpc(server: str) -> None:
    common = ("-p", "Hello", "--max-new-tokens", "40", "--seed", "11")
    auto = generate_json(server, *common, "--policy", "auto", "--gamma", "auto")
    assert auto["tokens"] == generate_json(server, *common, "--policy", "cloud")["tokens"]
    metrics = auto["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["decoded_tokens"] > 0, "the cloud begins"


def test_the_plain_output_is_the_text(server: str) -> None:
    common = ("-p", "Hello", "--max-new-tokens", "30", "--seed", "3", "--temperature", "0.5")
    plain = generate(server, *common)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == f"{generate_json(server, *common)['text']}\n"


def test_residual_mode_over_grpc(server: str) -> None:
    report = generate_json(server, "-p", "Hi", "--max-new-tokens", "30", "--mode", "residual")
    assert len(report["tokens"]) == 30 or report["finish_reason"] == "end_token"  # type: ignore[arg-type]


def fails(result: subprocess.CompletedProcess[str], *fragments: str) -> None:
    """One line that names the cause, a status that is not 0, nothing of the program's inside."""
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if "error" in line.lower()]
    assert len(errors) == 1, result.stderr
    for fragment in fragments:
        assert fragment in errors[0], result.stderr


def test_an_empty_prompt(server: str) -> None:
    fails(generate(server, "-p", ""), "the prompt is empty", "-p")


def test_a_prompt_longer_than_the_targets_context(server: str) -> None:
    fails(generate(server, "-p", "x" * MAX_CONTEXT), "does not fit the target's context of 96", "shorten")


def test_a_prompt_larger_than_any_message(server: str) -> None:
    fails(generate(server, "-p", "x" * 100_000), "no message as large as this prompt", "shorten")


def test_a_prompt_that_is_no_text(server: str) -> None:
    fails(generate(server, "-p", os.fsdecode(b"\xff\xfe")), "not text", "UTF-8")


def test_a_terminal_that_lacks_a_character_does_not_end_the_text(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("-p", "Hello", "--max-new-tokens", "30")
    text = generate_json(server, *common)["text"]
    assert isinstance(text, str)
    assert not text.isascii()
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    plain = generate(server, *common)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == text.encode("ascii", "replace").decode() + "\n"


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--gamma", "0"), "--gamma"),
        (("--gamma", "64"), "--gamma"),
        (("--gamma", "4", "--budget", "3"), "at least gamma (4)"),
        (("--gamma", "4", "--budget", "99"), "use a budget of at most 20"),
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "1.5"), "top_p"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--max-new-tokens", "99999999999"), "lower max_new_tokens"),
        (("--threads", "100000"), "--threads"),
        (("--connect-timeout", "nan"), "--connect-timeout"),
        (("--outage-timeout", "0"), "--outage-timeout"),
        (("--on-outage", "hope"), "--on-outage"),
        (("--keepalive", "0"), "--keepalive"),
        (("--tls-cert", "edge.pem"), "both --tls-cert and --tls-key"),
        (("--mode", "nonesuch"), "--mode"),
    ],
)
def test_options_out_of_range(server: str, arguments: tuple[str, ...], fragment: str) -> None:
    fails(generate(server, "-p", "Hi", *arguments), fragment)


def test_no_verifier_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = generate(address, "-p", "Hi", "--connect-timeout", "0.5")
    fails(result, address, "acespec serve")


def test_an_address_that_is_none() -> None:
    fails(generate("nonsense", "-p", "Hi"), "HOST:PORT")
    fails(
        generate("http://127.0.0.1:50051", "-p", "Hi"), "HOST:PORT", "leave out what stands before the host"
    )


def test_a_missing_bundle(server: str, tmp_path: Path) -> None:
    fails(generate(server, "-p", "Hi", bundle=tmp_path / "none"), "none", "acespec export")


def test_a_damaged_bundle(server: str, tmp_path: Path) -> None:
    damaged = tmp_path / "bundle"
    shutil.copytree(tiny_bundle().folder, damaged)
    graph = next(damaged.glob("*.data"))
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    fails(generate(server, "-p", "Hi", bundle=damaged), graph.name, "acespec export")


def test_another_vocabulary(server: str, tmp_path: Path) -> None:
    other = tmp_path / "bundle"
    shutil.copytree(tiny_bundle().folder, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["vocabulary_hash"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    fails(generate(server, "-p", "Hi", bundle=other), "vocabulary", "draft with the target's tokenizer")


def test_a_refused_client_leaves_the_server_to_others(server: str) -> None:
    before = generate_json(server, "-p", "Hi", "--max-new-tokens", "8")
    fails(generate(server, "-p", "x" * MAX_CONTEXT), "context")
    assert generate_json(server, "-p", "Hi", "--max-new-tokens", "8")["tokens"] == before["tokens"]


class Interrupted:
    """A generation under way, behind the first piece of its text."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.model = write_target_folder(tmp_path / "tiny-llama")
        serving, self.address = self._serve("0")
        common = ("--raw", "-p", "Hi", "--max-new-tokens", "60", "--seed", "5", "--gamma", "2")
        bundle = str(tiny_bundle().folder)
        self.process = subprocess.Popen(
            command("generate", "--server", self.address, "--draft", bundle, *common, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # what is read here, and nothing more, is missing from what `communicate` reads
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )
        assert self.process.stdout is not None
        self._first = self.process.stdout.read(1)
        self.serving = serving

    def kill(self) -> Interrupted:
        """SIGKILL for the verifier."""
        self.serving.kill()
        self.serving.wait()
        return self

    def restart(self) -> subprocess.Popen[str]:
        """Start another verifier where the first one was; it knows nothing of the session."""
        return self._serve(self.address.rpartition(":")[2])[0]

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit status, output, errors."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, (self._first + out).decode(), err.decode()

    def _serve(self, port: str) -> tuple[subprocess.Popen[str], str]:
        serving = subprocess.Popen(
            command("serve", "--model", str(self.model), "--port", port, "--pace-forward-ms", "50"),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert serving.stdout is not None
        match = re.search(r"ready on (\S+)", serving.stdout.readline())
        assert match is not None
        return serving, match[1]


def test_a_verifier_killed_within_the_text_is_one_line_of_its_own(tmp_path: Path) -> None:
    """The error does not hang on the end of the text that was shown so far."""
    status, out, err = Interrupted(tmp_path, "--on-outage", "fail").kill().end()
    assert status == 1
    assert out.endswith("\n")
    errors = [line for line in err.splitlines() if "error" in line]
    assert len(errors) == 1, err
    assert "lost the verifier at " in errors[0]


def test_a_verifier_that_stays_away_behind_some_text_is_told_once_and_given_up(tmp_path: Path) -> None:
    status, out, err = Interrupted(tmp_path, "--outage-timeout", "2").kill().end()
    assert status == 1
    assert out.endswith("\n")
    notice, error = [line for line in err.splitlines() if line.startswith("acespec:")]
    assert re.fullmatch(r"acespec: lost the verifier at \S+ .*; trying again for 2 s", notice)
    assert error.startswith("acespec: error: lost the verifier at ")
    assert error.endswith(", and for 2 s it gave no answer again; the text so far stands")


def test_an_interrupt_leaves_the_text_so_far_and_the_status_of_its_signal(tmp_path: Path) -> None:
    interrupted = Interrupted(tmp_path)
    interrupted.process.send_signal(signal.SIGINT)
    status, out, err = interrupted.end()
    interrupted.serving.terminate()
    assert interrupted.serving.wait(30) == 0
    assert status == 130
    assert "Traceback" not in err
    assert out.endswith("\n")
    assert out.strip()


def test_a_text_that_the_target_ends_at_once_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ended_at_once(*_: object) -> GenerationResult:
        return GenerationResult([], FinishReason.END_TOKEN, Statistics().report(LinkBytes(), None, None))

    monkeypatch.setattr(remote, "generate_remotely", ended_at_once)
    arguments = [
        "--server",
        "h:1",
        "--draft",
        str(tiny_bundle().folder),
        "--policy",
        "cloud",
        "--raw",
        "-p",
        "Hi",
    ]
    result = CliRunner().invoke(generate_command, arguments)
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert "the target ended it at once" in result.stderr
    assert CliRunner().invoke(generate_command, [*arguments, "--json"]).stderr == ""


def test_a_verifier_killed_and_restarted_costs_no_token(server: str, tmp_path: Path) -> None:
    interrupted = Interrupted(tmp_path, "--on-outage", "draft").kill()
    serving = interrupted.restart()
    status, out, err = interrupted.end()
    serving.terminate()
    assert serving.wait(30) == 0
    assert status == 0, err
    whole = generate_json(server, "-p", "Hi", "--max-new-tokens", "60", "--seed", "5", "--gamma", "2")
    assert out == f"{whole['text']}\n"


def test_a_verifier_that_stays_away_is_given_up_after_the_time_out() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        arguments = ("-p", "Hi", "--on-outage", "wait", "--outage-timeout", "1", "--connect-timeout", "0.1")
        fails(generate(address, *arguments), address, "acespec serve", "(tried for 1 s)")


def test_an_outage_that_lasts_leaves_provisional_tokens_and_a_status_of_its_own(
    server: str, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        arguments = ("-p", "Hi", "--max-new-tokens", "9", "--on-outage", "draft", "--outage-timeout", "2")
        result = generate(address, *arguments, "--connect-timeout", "1", "--json")
    assert result.returncode == 3
    assert "9 more tokens are drafted and unverified" in result.stderr
    report = json.loads(result.stdout)
    assert (report["tokens"], report["finish_reason"]) == ([], "outage")
    assert report["metrics"]["provisional_tokens"] == 9
    verified = generate_json(server, "-p", "Hi", "--max-new-tokens", "9")
    assert report["provisional"] == verified["tokens"], "the draft is the target itself"
    assert report["provisional_text"] == verified["text"]


def test_drafting_on_needs_a_draft(server: str) -> None:
    fails(generate(server, "-p", "Hi", "--policy", "cloud", "--on-outage", "draft"), "--policy rounds")


def test_tls_with_a_verifier_in_plaintext_is_one_line_at_once(server: str) -> None:
    fails(generate(server, "-p", "Hi", "--tls"), "does not speak TLS", "--tls")


def test_tls_files_that_cannot_be_used_are_named_at_once(server: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    fails(generate(server, "-p", "Hi", "--tls-ca", str(tmp_path / "ca.pem")), "ca.pem holds no certificate")


def test_a_token_comes_from_a_file_or_the_environment_and_stays_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("from-a-file")
    result = generate("10.0.0.1:1", "-p", "Hi", "--token-file", str(tmp_path / "token"))
    fails(result, "not sent to 10.0.0.1 in plaintext", "--tls")
    assert "from-a-file" not in result.stderr
    monkeypatch.setenv("ACESPEC_TOKEN", "from-the-environment")
    result = generate("10.0.0.1:1", "-p", "Hi")
    fails(result, "not sent to 10.0.0.1 in plaintext")
    assert "from-the-environment" not in result.stderr
    fails(generate("10.0.0.1:1", "-p", "Hi", "--token-file", str(tmp_path / "none")), "cannot read")
    monkeypatch.setenv("ACESPEC_TOKEN", "two words")
    fails(generate("10.0.0.1:1", "-p", "Hi"), "ACESPEC_TOKEN", "is no token")
