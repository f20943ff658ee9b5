"""The ``acespec`` command: a thin table of sub-commands, each loaded only when it is called."""

from __future__ import annotations

import importlib
import logging

import click

from acespec import __version__
from acespec.errors import AcespecError

COMMANDS = {
    "export": "acespec.export.commands:export",
    "generate": "acespec.edge_runtime.commands:generate",
    "models": "acespec.models.commands:models",
    "profile": "acespec.export.commands:profile",
    "serve": "acespec.cloud_verifier.commands:serve",
    "wan-relay": "acespec.bench.commands:wan_relay",
}


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is asked for: the edge never pays for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[cmd_name].split(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("-v", "--verbose", count=True, help="Log more: -v for INFO, -vv for DEBUG.")
def acespec(verbose: int) -> None:
    """Lossless edge-cloud speculative decoding over wide-area networks."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def main() -> None:
    """Run the command line; errors a user can cause become one line on standard error and exit status 1."""
    try:
        acespec()
    except AcespecError as error:
        raise SystemExit(f"acespec: error: {error}") from None
    except ModuleNotFoundError as error:
        extra = missing_extra(error.name or "")
        if extra is None:
            raise
        raise SystemExit(
            f"acespec: error: {error.name} is not installed; install it with: pip install 'acespec[{extra}]'"
        ) from None


def missing_extra(module: str) -> str | None:
    """The extra that brings ``module``, or None for a module no extra brings."""
    extras = {
        "edge": ("onnxruntime", "tokenizers", "grpc", "google", "jinja2"),
        "export": ("onnx", "onnxscript", "onnx_ir"),
        "cloud": ("torch", "transformers", "grpc_health", "gguf", "safetensors"),
    }
    top = module.split(".")[0]
    return next((extra for extra, modules in extras.items() if top in modules), None)
