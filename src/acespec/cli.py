"""The ``acespec`` command: a thin table of sub-commands, each loaded only when it is called."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import click

from acespec import __version__
from acespec.errors import AcespecError
from acespec.logs import configure_logging


@dataclass(frozen=True)
class LazyCommand:
    """Where a sub-command is, and its line in ``acespec --help``, which loads none of them."""

    module: str
    attribute: str
    summary: str
    extra: str | None = None
    """What it needs beyond ``edge``, to be named whichever of its modules is missing first."""


COMMANDS = {
    "bench": LazyCommand(
        "acespec.bench.lab.commands", "bench", "Measure ways to generate over simulated links."
    ),
    "certs": LazyCommand(
        "acespec.certs_command", "certs", "Make certificates for development: TLS and mTLS.", "cloud"
    ),
    "demo": LazyCommand(
        "acespec.bench.commands", "demo", "Run the whole system on this machine and compare it.", "bench"
    ),
    "engine": LazyCommand(
        "acespec.edge_runtime.engine_command", "engine", "Compile a bundle for this device with TensorRT."
    ),
    "doctor": LazyCommand(
        "acespec.doctor_command", "doctor", "Say what this machine can run and what is missing."
    ),
    "export": LazyCommand(
        "acespec.export.commands", "export", "Turn a model into a bundle the edge can run.", "export"
    ),
    "generate": LazyCommand(
        "acespec.edge_runtime.commands", "generate", "Generate text with a verifier's help."
    ),
    "inspect": LazyCommand(
        "acespec.edge_runtime.inspect_command", "inspect", "Show what a bundle holds and takes."
    ),
    "models": LazyCommand("acespec.models.commands", "models", "Fetch models and derive drafts from them."),
    "plan": LazyCommand(
        "acespec.edge_runtime.plan_command", "plan", "Say which way to generate wins over a link."
    ),
    "profile": LazyCommand(
        "acespec.edge_runtime.profile_command", "profile", "Measure how long a bundle's steps take here."
    ),
    "serve": LazyCommand(
        "acespec.cloud_verifier.commands", "serve", "Serve a target model as a verifier.", "cloud"
    ),
    "token": LazyCommand(
        "acespec.token_command",
        "token",
        "Make, list and revoke the tokens a verifier asks edges for.",
        "cloud",
    ),
    "validate": LazyCommand("acespec.validate_command", "validate", "Check a bundle's files and logits."),
    "wan-relay": LazyCommand(
        "acespec.bench.commands", "wan_relay", "Relay TCP with the delay of a wide-area link."
    ),
}

EXTRAS = {
    "edge": ("onnxruntime", "tokenizers", "grpc", "google", "jinja2"),
    "cloud": (
        "torch",
        "transformers",
        "grpc_health",
        "gguf",
        "safetensors",
        "accelerate",
        "huggingface_hub",
        "cryptography",
        "jwt",
        "prometheus_client",
        "yaml",
    ),
    "tracing": ("opentelemetry",),
    "export": ("onnx", "onnxscript", "onnx_ir", "ml_dtypes"),
    "plot": ("matplotlib",),
}
"""The modules each extra brings; ``edge`` first, as the smallest that is likely to do."""
NEEDS_NEWER_PYTHON = {"tomllib": "cloud"}
"""Modules of Python 3.11 itself, by the extra that may count on them."""


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is asked for: the edge never pays for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("-v", "--verbose", count=True, help="Log more: -v for INFO, -vv for DEBUG.")
def acespec(verbose: int) -> None:
    """Lossless edge-cloud speculative decoding over wide-area networks."""
    configure_logging(verbose)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors a user can cause become one line on standard error and exit status 1.

    ``arguments`` are the words after ``acespec``; None: those of this process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            acespec(args=words, prog_name="acespec")
        finally:
            if sys.stdout is not None:  # None where it was closed
                sys.stdout.flush()  # here, where a full disk can still be reported in one line
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = StringIO()  # Python would try to write what is left in the old one at its end
        place = error.filename or "the output"
        raise SystemExit(
            f"acespec: error: cannot write {place} ({error.strerror}); make room or choose another place"
        ) from None
    except AcespecError as error:
        raise SystemExit(f"acespec: error: {error}") from None
    except ImportError as error:
        name = next((word for word in words if not word.startswith("-")), "")
        message = not_importable(error, COMMANDS.get(name))
        if message is None:
            raise
        raise SystemExit(f"acespec: error: {message}") from None


def not_importable(error: ImportError, command: LazyCommand | None) -> str | None:
    """The line about a module that ``command`` needs; None for one that no extra brings, which is a bug."""
    module = error.name or ""
    extra = missing_extra(module)
    if extra is None:
        return None
    if not isinstance(error, ModuleNotFoundError):  # it is there, and broken
        cause = " ".join(str(error).split())
        return f"{module} cannot be imported ({cause}); what mends it: acespec doctor"
    if command is not None and command.extra is not None and extra != "tracing":
        extra = command.extra
    python = "" if extra == "edge" else " (Python 3.11 or later)"
    return (
        f"this needs the extra {extra!r}, of which {module} is not installed; in a clone of acespec, run: "
        f"pip install '.[{extra}]'{python}"
    )


def missing_extra(module: str) -> str | None:
    """The extra that brings ``module``, or None for a module no extra brings."""
    top = module.split(".")[0]
    found = next((extra for extra, modules in EXTRAS.items() if top in modules), None)
    return found or NEEDS_NEWER_PYTHON.get(top)
