"""Check that pip finds a wheel for everything a Jetson installs: ``make check-wheels``.

For both JetPacks: what ``requirements/edge.txt`` pins for the device's Python and processor, and what the
JetPack's extra adds. pip is told the device's platform and Python, and resolves without installing.

pip evaluates environment markers and ``Requires-Python`` for the interpreter it runs on, whatever Python it
is told. So the markers are evaluated here, for the device, and pip is told to ignore ``Requires-Python``: the
lock was made with it.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

LOCK = Path(__file__).resolve().parent.parent / "requirements/edge.txt"
SHOWN = ("cuda-bindings", "cuda-python", "numpy", "onnxruntime", "tokenizers")


@dataclass(frozen=True)
class JetPack:
    """What decides which wheels fit a device."""

    extra: str
    """The extra of acespec that its image installs."""
    python: Version
    glibc_minor: int
    """Of its glibc 2.x, which decides the manylinux tags it takes."""

    @property
    def name(self) -> str:
        return f"{self.extra}, Python {self.python_version}, aarch64"

    @property
    def python_version(self) -> str:
        return f"{self.python.major}.{self.python.minor}"

    @property
    def platforms(self) -> list[str]:
        """The platform tags of wheels it runs, the newest first. pip adds none to those it is given."""
        minors = range(self.glibc_minor, 16, -1)
        return [*(f"manylinux_2_{minor}_aarch64" for minor in minors), "manylinux2014_aarch64"]

    @property
    def markers(self) -> dict[str, str]:
        """What environment markers see there."""
        return {
            "extra": self.extra,
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": "aarch64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": str(self.python),
            "python_version": self.python_version,
            "sys_platform": "linux",
        }


JETPACKS = (
    JetPack("jetpack6", Version("3.10.12"), glibc_minor=35),  # Ubuntu 22.04
    JetPack("jetpack7", Version("3.12.3"), glibc_minor=39),  # Ubuntu 24.04
)


def applying(lines: Iterable[str], markers: dict[str, str]) -> list[str]:
    """The requirements among ``lines`` that hold under ``markers``, without their markers."""
    wanted = [Requirement(line) for line in lines]
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate(markers)
    ]


def required(jetpack: JetPack) -> list[str]:
    """What the device installs: the lock's pins, and what its extra adds to the extra ``edge``."""
    pins = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    declared = [line for line in importlib.metadata.requires("acespec") or () if "jetpack" in line]
    added = [line for line in declared if not line.startswith("acespec[")]
    assert added, "install acespec again: its metadata has no extra for JetPack"
    return applying([*pins, *added], jetpack.markers)


def resolution(jetpack: JetPack) -> subprocess.CompletedProcess[str]:
    """pip's, for the device."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--only-binary=:all:", "--target", folder,
            "--python-version", jetpack.python_version, "--implementation", "cp", "--ignore-requires-python",
            *(f"--platform={tag}" for tag in jetpack.platforms), *required(jetpack),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)


def report(jetpack: JetPack, result: subprocess.CompletedProcess[str]) -> str:
    """What pip found, or did not find, in a line or two."""
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        return "\n".join([f"{jetpack.name}: no wheel for everything", *errors])
    chosen = result.stdout.partition("Would install ")[2].split()
    shown = [item for item in chosen if item.rpartition("-")[0].replace("_", "-") in SHOWN]
    return f"{jetpack.name}: a wheel for each of {len(chosen)} packages ({', '.join(shown)})"


if __name__ == "__main__":
    results = {jetpack: resolution(jetpack) for jetpack in JETPACKS}
    sys.stdout.writelines(f"{report(jetpack, result)}\n" for jetpack, result in results.items())
    sys.exit(any(result.returncode for result in results.values()))
