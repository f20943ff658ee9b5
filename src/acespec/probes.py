"""Trying a library where it can do no harm: in an interpreter of its own, which it may crash or hang."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 120.0
"""A first import of a large library from a slow disk takes a minute."""
MARKER = "acespec-probe:"
NOT_INSTALLED = "not installed"
NO_VERSION = "version unknown"

PROGRAM = f"""
import json, sys
sys.path[:], code = json.load(sys.stdin)
scope = {{}}
try:
    exec(compile(code, "probe", "exec"), scope)
    report = {{"answer": scope["answer"], "fault": ""}}
except BaseException as error:
    text = " ".join(str(error).split())
    known = any(base.__name__ == "AcespecError" for base in type(error).__mro__)
    report = {{"answer": None, "fault": text if known else f"{{type(error).__name__}}: {{text}}"}}
print("\\n{MARKER}" + json.dumps(report), flush=True)
"""
"""Runs code with the caller's ``sys.path`` and prints what it left in ``answer``, or the error it raised."""

ONNX_RUNTIME_BUILDS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
    "ort-nightly",
    "ort-nightly-gpu",
)
"""Distributions that all install the folder ``onnxruntime``, each over the other's files."""


@dataclass(frozen=True)
class Answer:
    """What a probe found."""

    value: Any
    """What the code left in ``answer``; None when it failed."""
    fault: str
    """Why it failed, in one line; empty when it did not."""
    messages: str
    """What it wrote to standard error."""


@dataclass(frozen=True)
class Library:
    """An importable library, or why it is not."""

    name: str
    version: str
    """Empty when it cannot be imported."""
    fault: str
    """Empty when it can. An error of this project's is the cause, ``; `` and the remedy."""

    @property
    def works(self) -> bool:
        return not self.fault

    @property
    def cause(self) -> str:
        return self.fault.partition("; ")[0]

    @property
    def remedy(self) -> str:
        return self.fault.partition("; ")[2]


def run_probe(code: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run ``code`` in a fresh interpreter; it leaves what it found in ``answer``, which JSON can carry.

    Never raises for what the code does: it may raise, exit, crash or hang.
    """
    try:
        result = subprocess.run(  # noqa: S603 - this interpreter, on this module's own code
            [sys.executable, "-c", PROGRAM],
            input=json.dumps([sys.path, code]),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, f"no answer in {timeout_s:.0f} s", "")
    except OSError as error:
        return Answer(None, f"Python cannot be started ({error})", "")
    for line in reversed(result.stdout.splitlines()):
        if line.startswith(MARKER) and result.returncode == 0:
            report = json.loads(line.removeprefix(MARKER))
            return Answer(report["answer"], report["fault"], result.stderr)
    return Answer(None, _ending(result.returncode, result.stderr), result.stderr)


def _ending(returncode: int, messages: str) -> str:
    """How a process ended that gave no answer, with its last word."""
    how = f"it ended the process with status {returncode}"
    if returncode < 0:
        how = f"it ended the process by {_signal_name(-returncode)}"
    last = next((line.strip() for line in reversed(messages.splitlines()) if line.strip()), "")
    return f"{how} ({last})" if last else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def try_import(module: str) -> Library:
    """Import ``module`` in another process and ask its version. One that tells none works all the same."""
    top = module.split(".")[0]
    answer = run_probe(
        f"import importlib, importlib.metadata as metadata\n"
        f"module = importlib.import_module({module!r})\n"
        f"answer = getattr(module, '__version__', None)\n"
        f"if answer is None:\n"
        f"    (name, *_) = metadata.packages_distributions().get({top!r}, [{module!r}])\n"
        f"    try:\n"
        f"        answer = metadata.version(name)\n"
        f"    except metadata.PackageNotFoundError:\n"
        f"        answer = {NO_VERSION!r}\n"
        f"answer = str(answer)\n"
    )
    absent = [f"ModuleNotFoundError: No module named {name!r}" for name in (top, module)]
    return Library(module, answer.value or "", NOT_INSTALLED if answer.fault in absent else answer.fault)


def onnx_runtime_builds() -> list[str]:
    """Distributions installed that bring the folder ``onnxruntime``, and versions. Two are a fault."""
    found: list[str] = []
    for name in ONNX_RUNTIME_BUILDS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def why_not_loaded(messages: str) -> str:
    """The shared library that ONNX Runtime's log says could not be loaded, or nothing."""
    match = re.search(r"Failed to load library .*?with error: (?P<cause>.+)", messages)
    return match["cause"].strip() if match else ""
