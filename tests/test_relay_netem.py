"""scripts/netem.sh: the commands it makes, and what it leaves alone. The kernel's own netem is not tried."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "netem.sh"
NO_QDISC = "qdisc noqueue 0: root refcnt 2"
OURS = "qdisc netem 8001: root refcnt 2 limit 100000 delay 25ms"


def run(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )


class Tc:
    """A ``tc`` that notes what it is told, has one discipline to show, and may fail."""

    def __init__(self, folder: Path, shown: str, failure: str = "") -> None:
        self._log = folder / "log"
        program = folder / "tc"
        program.write_text(
            f'#!/bin/bash\necho "tc $*" >> "{self._log}"\n'
            f'[ "$2" != show ] || {{ echo "{shown}"; exit; }}\n'
            f'[ -z "{failure}" ] || {{ echo "{failure}" >&2; exit 2; }}\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
        self._path = f"{folder}:{os.environ['PATH']}"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, path=self._path)

    @property
    def changes(self) -> list[str]:
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not line.startswith("tc qdisc show")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("up lo --delay 25", "add dev lo root netem limit 100000 delay 25ms"),
        ("up eth0 --delay 25 --jitter 10", "add dev eth0 root netem limit 100000 delay 30ms 5ms"),
        ("up lo --jitter 0.5", "add dev lo root netem limit 100000 delay 0.25ms 0.25ms"),
        ("up lo --rate 50kbps", "add dev lo root netem limit 100000 delay 0ms rate 50kbit"),
        (
            "up lo --rate 1.5Mbps --loss 0.1",
            "add dev lo root netem limit 100000 delay 0ms loss 0.1% rate 1.5mbit",
        ),
        ("down lo", "del dev lo root"),
    ],
)
def test_a_dry_run_prints_the_command_and_runs_nothing(tmp_path: Path, arguments: str, expected: str) -> None:
    Tc(tmp_path, NO_QDISC)
    done = run(*arguments.split(), "--dry-run", path=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tc qdisc {expected}\n"
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "arguments",
    ["", "up", "sideways lo", "up a;b", "up -x", "up lo --rate 50", "up lo --delay -1", "up lo --delay 1e3",
     "up lo --loss", "down lo --delay 5", "up lo --speed 5"],
)  # fmt: skip
def test_what_is_not_understood_is_told_with_the_usage(tmp_path: Path, arguments: str) -> None:
    Tc(tmp_path, NO_QDISC)
    done = run(*arguments.split(), path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert "scripts/netem.sh up INTERFACE" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("netem.sh: ")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("shown", "verb"), [(NO_QDISC, "add"), ("", "add"), (OURS, "change")])
def test_what_is_set_is_changed_and_nothing_else(tmp_path: Path, shown: str, verb: str) -> None:
    tc = Tc(tmp_path, shown)
    done = tc.run("up", "lo", "--delay", "5")
    assert done.returncode == 0, done.stderr
    assert tc.changes == [f"tc qdisc {verb} dev lo root netem limit 100000 delay 5ms"]
    assert done.stdout == tc.changes[0] + "\n"


@pytest.mark.parametrize(("shown", "expected"), [(OURS, ["tc qdisc del dev lo root"]), (NO_QDISC, [])])
def test_down_gives_back_what_was_taken(tmp_path: Path, shown: str, expected: list[str]) -> None:
    tc = Tc(tmp_path, shown)
    assert tc.run("down", "lo").returncode == 0
    assert tc.changes == expected


@pytest.mark.parametrize("action", ["up", "down"])
def test_another_discipline_is_left_alone(tmp_path: Path, action: str) -> None:
    tc = Tc(tmp_path, "qdisc htb 1: root refcnt 2 r2q 10")
    done = tc.run(action, "lo")
    assert done.returncode == 1
    assert "somebody has set another queue discipline on lo" in done.stderr
    assert tc.changes == []


@pytest.mark.parametrize(
    ("failure", "status", "expected"),
    [
        ("Error: Specified qdisc kind is unknown.", 3, "could not be run: this kernel has no netem"),
        ("RTNETLINK answers: No such file or directory", 3, "acespec wan-relay needs none"),
        ("RTNETLINK answers: Operation not permitted", 1, "Operation not permitted"),
    ],
)
def test_it_says_why_it_could_not_be_run(tmp_path: Path, failure: str, status: int, expected: str) -> None:
    done = Tc(tmp_path, NO_QDISC, failure).run("up", "lo", "--delay", "5")
    assert done.returncode == status
    assert expected in done.stderr
    assert done.stdout == ""
