"""The ``acespec generate`` command."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from acespec.edge_runtime.draft_model import load_draft
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.link_options import link_options, remote_settings
from acespec.edge_runtime.notices import Beside, Elsewhere, OutageNotices, records_on_lines_of_their_own
from acespec.edge_runtime.outage import LinkChange, OnOutage, ignore_change
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.runtimes import Provider, runtime_options
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, bundles_folder, load_tokenizer, pair
from acespec.models.manifest import Bundle, load_bundle
from acespec.options import THREADS, RangeOrAuto, Runtime
from acespec.speculation import Allocation, SamplingParams
from acespec.wire import MAX_CHAIN, AcceptanceMode

logger = logging.getLogger(__name__)

PAIR = pair(DEMO_PAIR)
EXIT_UNVERIFIED = 3
"""Exit status if an outage left the text without its verified end."""


class EndedByInterrupt(click.Command):
    """A command that Ctrl-C ends with the status of other programs that a signal ended."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


@click.command(cls=EndedByInterrupt)
@link_options
@click.option(
    "--draft",
    type=click.Path(path_type=Path, file_okay=False),
    help="Bundle of the draft model. With --policy cloud its tokenizer alone is used, which must be the "
    f"target's.  [default: the demo pair's, in {bundles_folder()}]",
)
@click.option("-p", "--prompt", required=True, help="The text to answer or to continue.")
@click.option(
    "--chat/--raw", default=True, help="Apply the model's chat template, or send the prompt as it is."
)
@click.option(
    "--mode",
    type=click.Choice([m.value for m in AcceptanceMode]),
    default=AcceptanceMode.COUPLED.value,
    show_default=True,
    help="How drafted tokens are accepted.",
)
@click.option(
    "--policy",
    type=click.Choice([*(p.value for p in SpeculationPolicy), "cloud"]),
    default=SpeculationPolicy.ROUNDS.value,
    show_default=True,
    help="Speculate in rounds, race with the cloud (coupled mode), let it decode alone, or change between "
    "rounds and the race, or the cloud alone where there is none, as one or the other is faster.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option(
    "--temperature", type=float, default=PAIR.sampling.temperature, show_default=True, help="0 is greedy."
)
@click.option("--top-k", type=int, default=PAIR.sampling.top_k, show_default=True, help="0 keeps all.")
@click.option("--top-p", type=float, default=PAIR.sampling.top_p, show_default=True)
@click.option("--min-p", type=float, default=PAIR.sampling.min_p, show_default=True)
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True)
@click.option("--presence-penalty", type=float, default=0.0, show_default=True)
@click.option("--frequency-penalty", type=float, default=0.0, show_default=True)
@click.option("-n", "--max-new-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--gamma",
    type=RangeOrAuto(1, MAX_CHAIN),
    default=PAIR.gamma,
    show_default=True,
    help="Longest chain; auto: chosen together with the budget, by what link and models turn out to be.",
)
@click.option(
    "--budget",
    type=click.IntRange(1),
    help="Tree nodes a step, gamma included.  [default: follows the network]",
)
@click.option(
    "--allocation",
    type=click.Choice([a.value for a in Allocation]),
    default=PAIR.allocation.value,
    show_default=True,
    help="How branches are spread over the depths of the chain.",
)
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of the draft engine.")
@runtime_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with tokens, text and every metric."
)
def generate(
    server: str,
    link: dict[str, Any],
    draft: Path | None,
    prompt: str,
    chat: bool,
    policy: str,
    threads: int,
    runtime: Runtime,
    provider: Provider | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with a draft model here and a verifier in the cloud."""
    remote = remote_settings(link)
    if remote.outage.on_outage is OnOutage.DRAFT and policy == "cloud":
        raise AcespecError("--on-outage draft needs the draft model: use --policy rounds, race or auto")
    if policy == SpeculationPolicy.RACE and options["mode"] != AcceptanceMode.COUPLED:
        raise AcespecError(f"--policy race needs --mode {AcceptanceMode.COUPLED.value}")
    from acespec.edge_runtime.remote import generate_remotely
    from acespec.edge_runtime.text import IncrementalText, encode_prompt
    from acespec.edge_runtime.text_display import TextDisplay

    bundle = load_bundle(draft if draft is not None else demo_bundle())
    tokenizer = load_tokenizer(bundle.tokenizer_path)
    prompt_ids = encode_prompt(tokenizer, bundle, prompt, chat)
    request, settings = requested(bundle, prompt_ids, options)
    if policy != "cloud":
        settings = dataclasses.replace(settings, policy=SpeculationPolicy(policy))
    model = load_draft(bundle, threads, runtime, provider) if policy != "cloud" else None
    text = IncrementalText(tokenizer)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to stop
    output = io.StringIO() if as_json else sys.stdout
    display = TextDisplay(output, text, shows_provisional=output.isatty())
    beside: Beside = display if sys.stderr.isatty() else Elsewhere()

    def say(line: str) -> None:
        beside.leave_line()
        click.echo(f"acespec: {line}", err=True)
        beside.go_on()

    # With -v the log tells of every attempt.
    is_logged = logger.isEnabledFor(logging.INFO)
    on_change: Callable[[LinkChange], object] = ignore_change if is_logged else OutageNotices(say)
    try:
        with records_on_lines_of_their_own(beside):
            result = asyncio.run(
                generate_remotely(
                    server,
                    bundle,
                    request,
                    model,
                    settings,
                    display.commit,
                    remote,
                    display.show_provisional,
                    on_change,
                )
            )
    except (AcespecError, KeyboardInterrupt):
        display.break_off()  # the error gets a line of its own
        raise
    display.finish()
    logger.info("%s", summary(result))
    if as_json:
        click.echo(json.dumps(report(result, text.text, text.preview(result.provisional))))
    elif result.finish_reason is FinishReason.END_TOKEN and not text.text:
        say("the text is empty: the target ended it at once (is --chat or --raw the right one?)")
    if result.finish_reason is FinishReason.OUTAGE:
        say(
            f"the verifier stayed out of reach: {len(result.provisional)} more tokens are drafted "
            "and unverified (--json has them)"
        )
        raise SystemExit(EXIT_UNVERIFIED)


def requested(
    bundle: Bundle, prompt: tuple[int, ...], options: dict[str, Any]
) -> tuple[GenerationRequest, DraftSettings]:
    """What ``options`` (by parameter name) ask for. Raises ``AcespecError`` naming the one out of range."""
    sampling = {f.name: options[f.name] for f in dataclasses.fields(SamplingParams)}
    try:
        request = GenerationRequest(
            prompt=prompt,
            end_token_ids=bundle.manifest.end_token_ids,
            max_new_tokens=options["max_new_tokens"],
            sampling=SamplingParams(**sampling),
            seed=options["seed"],
            mode=AcceptanceMode(options["mode"]),
        )
        settings = dataclasses.replace(
            DraftSettings.recommended(PAIR),
            gamma=options["gamma"],
            budget=options["budget"],
            allocation=Allocation(options["allocation"]),
        )
        settings.check_buckets(bundle.manifest.graphs[0].buckets)  # all are of one export
    except ValueError as error:
        raise AcespecError(str(error)) from None
    return request, settings


def demo_bundle() -> Path:
    """Where the demo pair's bundle lies. Raises ``AcespecError`` if it was not made yet."""
    folder = bundles_folder() / PAIR.draft
    if not folder.is_dir():
        raise AcespecError(
            f"the demo's draft bundle is not in {folder}: make it with 'acespec demo --prepare-only', "
            "or name the folder of a bundle (copied from where it was exported) with --draft"
        )
    return folder


def summary(result: GenerationResult) -> str:
    """One line of what counts most, shown with ``acespec -v``."""
    metrics = result.metrics
    parts = [f"{metrics.tokens} tokens", f"{metrics.tokens_per_s:.2f} tokens/s"]
    if metrics.acceptance is not None:
        parts.append(f"{metrics.acceptance:.0%} of drafted tokens accepted")
    if metrics.hit_rate is not None:
        parts.append(f"{metrics.hit_rate:.0%} of rounds answered by the tree")
    if metrics.mean_round_trip_ms is not None:
        parts.append(f"round trip {metrics.mean_round_trip_ms:.0f} ms")
    return ", ".join(parts)


def report(result: GenerationResult, text: str, provisional_text: str) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "tokens": result.tokens,
        "text": text,
        "provisional": result.provisional,
        "provisional_text": provisional_text,
        "finish_reason": result.finish_reason.value,
        "metrics": dataclasses.asdict(result.metrics),
    }
