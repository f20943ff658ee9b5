"""The demo: one prompt and one seed through the whole system, in rounds, in a race and by the cloud alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from acespec.bench.link import DirectionShape, LinkShape
from acespec.bench.processes import Service, paced_verifier, run_to_end
from acespec.bench.relay import Traffic
from acespec.bench.relay_process import carried, relay_service
from acespec.edge_runtime.draft_model import DraftModel, load_draft
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.remote import generate_remotely
from acespec.edge_runtime.request import DraftSettings, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.text import IncrementalText, encode_prompt
from acespec.export.options import ExportOptions, parse_precision
from acespec.models import DEMO_PAIR, bundles_folder, load_tokenizer, model_fingerprint, pair
from acespec.models.latency import machine_name
from acespec.models.manifest import Bundle, BundleError, load_bundle
from acespec.models.prepare import ensure_pair
from acespec.speculation import SamplingParams

PAIR = pair(DEMO_PAIR)
PROMPT = "Explain to a curious child why the sky is blue during the day and red at sunset."
PRECISION = "int8"
WARM_UP_TOKENS = 8
ROUNDS = DraftSettings.recommended(PAIR)
RACE = replace(ROUNDS, policy=SpeculationPolicy.RACE)
DRAFT_THREADS = VERIFIER_THREADS = 1
"""One core for the device, one for the verifier: the demo must do with two."""


@dataclass(frozen=True)
class DemoOptions:
    """What the demo runs."""

    prompt: str = PROMPT
    max_new_tokens: int = 160
    sampling: SamplingParams = PAIR.sampling
    seed: int = 7
    round_trip_ms: float = 50.0
    pace_forward_ms: float | None = PAIR.target_step_ms
    """Every forward of the verifier takes at least this long; None: as long as it takes here."""


@dataclass(frozen=True)
class Run:
    """One generation, and the bytes its connection carried through the relay."""

    result: GenerationResult
    text: str
    traffic: Traffic


@dataclass(frozen=True)
class Comparison:
    """The same request generated each way."""

    options: DemoOptions
    rounds: Run
    race: Run
    cloud_only: Run

    @property
    def identical(self) -> bool:
        """Whether all texts are the same, token for token."""
        return all(run.result.tokens == self.cloud_only.result.tokens for run in (self.rounds, self.race))

    def speedup(self, run: Run) -> float:
        """Speed of one of the runs, relative to cloud-only decoding."""
        return run.result.metrics.tokens_per_s / self.cloud_only.result.metrics.tokens_per_s


def prepare(say: Callable[[str], None], precision: str = PRECISION) -> Bundle:
    """Bring the pair's models, and the draft's bundle, into the cache; at once if all is there and current.

    A bundle of another ``precision`` than the demo's lies beside it.
    """
    options = ExportOptions(PAIR.buckets, graph="ort", precision=parse_precision(precision))
    folders = ensure_pair(PAIR, say)
    folder = bundles_folder() / (PAIR.draft if precision == PRECISION else f"{PAIR.draft}-{precision}")
    if folder.is_dir():
        try:
            bundle = load_bundle(folder)
        except BundleError as error:
            say(f"making the draft's bundle again: {error}")
        else:
            if is_made_with(bundle, model_fingerprint(folders.draft), options):
                return bundle
            say("the draft's bundle was made from something else, or otherwise; making it again")
    from acespec.export.bundle import export_bundle  # brings torch: only where something is exported

    say(f"exporting {PAIR.draft} as {precision} to {folder}")
    return export_bundle(folders.draft, folder, options, say)


def is_made_with(bundle: Bundle, fingerprint: str, options: ExportOptions) -> bool:
    """Whether ``bundle`` is what an export of the model with ``fingerprint`` and these ``options`` gives."""
    manifest, variant = bundle.manifest, bundle.manifest.graphs[0]
    made = (
        manifest.source_fingerprint,
        variant.name,
        manifest.precision,
        manifest.quantization,
        variant.buckets,
        None if variant.prefill is None else variant.prefill.width,
        variant.top_k,
    )
    return made == (
        fingerprint,
        options.graph,
        options.precision,
        options.quantization,
        options.buckets,
        options.prefill_chunk,
        options.top_k,
    )


async def ready_bundle() -> Bundle:
    """The draft's bundle, with the latencies of this machine. Whatever is missing is made by other processes.

    So this process stays what it would be on a device: one without torch.
    """
    await run_to_end("demo", "--prepare-only")
    folder = bundles_folder() / PAIR.draft
    latency = load_bundle(folder).manifest.latency
    if latency is None or (latency.machine, latency.threads) != (machine_name(), DRAFT_THREADS):
        await run_to_end("profile", str(folder), "--threads", str(DRAFT_THREADS))
    return load_bundle(folder)


async def compare(
    options: DemoOptions, on_stage: Callable[[str], None], on_text: Callable[[str], None]
) -> Comparison:
    """Start a verifier and a relay, generate each way, and stop them.

    ``on_stage`` is told what comes next, ``on_text`` every piece of text as it is committed.
    """
    bundle = await ready_bundle()
    draft = load_draft(bundle, DRAFT_THREADS)
    on_stage("starting the verifier and the relay")
    short = replace(options, max_new_tokens=WARM_UP_TOKENS)
    serve = paced_verifier(PAIR.target, VERIFIER_THREADS, options.pace_forward_ms)
    try:
        async with serve as verifier:
            one_way = DirectionShape(options.round_trip_ms / 2.0)
            relay = relay_service(verifier.address, LinkShape(one_way, one_way))
            async with relay as link:
                on_stage("warming up")
                for settings in (ROUNDS, RACE, None):
                    await _run(link, bundle, draft, settings, short, lambda _: None)
                on_stage("AceSpec, in rounds")
                rounds = await _run(link, bundle, draft, ROUNDS, options, on_text)
                on_stage("AceSpec, in a race, same seed")
                race = await _run(link, bundle, draft, RACE, options, on_text)
                on_stage("cloud-only decoding, same seed")
                cloud_only = await _run(link, bundle, draft, None, options, on_text)
    finally:
        draft.runner.close()
    return Comparison(options, rounds, race, cloud_only)


async def _run(
    link: Service,
    bundle: Bundle,
    draft: DraftModel,
    settings: DraftSettings | None,
    options: DemoOptions,
    on_text: Callable[[str], None],
) -> Run:
    """One generation over a connection of its own through the relay; ``settings`` None: cloud-only."""
    tokenizer = load_tokenizer(bundle.tokenizer_path)
    text = IncrementalText(tokenizer)
    request = GenerationRequest(
        prompt=encode_prompt(tokenizer, bundle, options.prompt, chat=True),
        end_token_ids=bundle.manifest.end_token_ids,
        max_new_tokens=options.max_new_tokens,
        sampling=options.sampling,
        seed=options.seed,
    )
    result = await generate_remotely(
        link.address,
        bundle,
        request,
        None if settings is None else draft,
        settings or ROUNDS,
        lambda tokens: on_text(text.push(tokens)),
    )
    on_text(text.finish() + "\n")
    return Run(result, text.text, await carried(link))
