"""Which decoder layers a target can best do without: a short greedy search by expected acceptance.

What is speculated on is the target's own text, so that is what layers are judged by: the target continues a
few built-in prompts, and a layer is worth what the overlap of the two next-token distributions loses
without it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acespec.errors import AcespecError
from acespec.models.chat import ChatTemplate, load_chat_template
from acespec.models.vocabulary import load_tokenizer

logger = logging.getLogger(__name__)

TOP_P = 0.9
"""The nucleus (at temperature 1) for both distributions, and for the continuations drawn."""
SHORTLIST = 10
"""After the first round only the layers that hurt least when removed alone stay in the search."""
CONTINUATION_TOKENS = 48
CALIBRATION_PROMPTS = (
    "Explain in simple words why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "A train travels 60 km in 45 minutes. How far does it travel in two hours? Explain your steps.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List five tips for a good night's sleep.",
    "Give me a recipe for a vegetable soup for four people.",
)


@dataclass(frozen=True)
class Continuation:
    """A prompt and what the target wrote after it."""

    tokens: torch.Tensor
    """``[n]`` int64, prompt included."""
    prompt_length: int


@dataclass(frozen=True)
class LayerChoice:
    """Layers to skip, ascending, and the expected acceptance that is left."""

    skipped_layers: tuple[int, ...]
    acceptance: float


def choose_layers_of(
    model_folder: Path, count: int, progress: Callable[[str], None] = logger.info
) -> LayerChoice:
    """``choose_layers`` for a model folder, judged on what the target writes to ``CALIBRATION_PROMPTS``.

    The prompts go through the chat template where the model has one. Offline. Raises ``AcespecError`` when
    ``count`` leaves no layer or the model has no ``model.model.layers``.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto", local_files_only=True)
    model.eval()
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None:
        raise AcespecError(f"{model_folder} is no decoder with model.layers; choose with --skip-layers")
    if not 0 < count < len(layers):
        raise AcespecError(f"the target has {len(layers)} layers: skip 1 to {len(layers) - 1} of them")
    progress(f"writing {len(CALIBRATION_PROMPTS)} texts of {CONTINUATION_TOKENS} tokens to judge layers by")
    return choose_layers(model, sample_continuations(model, model_folder), count, progress)


def sample_continuations(model: Any, model_folder: Path) -> list[Continuation]:
    """What ``model`` writes to ``CALIBRATION_PROMPTS``, the same every time."""
    tokenizer = load_tokenizer(model_folder / "tokenizer.json")
    try:
        template: ChatTemplate | None = load_chat_template(model_folder)
    except AcespecError:
        template = None
    continuations = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for prompt in CALIBRATION_PROMPTS:
            text = template.render(prompt) if template is not None else prompt
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=template is None).ids])
            written = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=TOP_P,
                max_new_tokens=CONTINUATION_TOKENS,
            )
            continuations.append(Continuation(written[0], ids.shape[1]))
    return continuations


def choose_layers(
    model: Any,
    continuations: Sequence[Continuation],
    count: int,
    progress: Callable[[str], None] = logger.info,
) -> LayerChoice:
    """Skip ``count`` layers one after the other, each time the one that costs the least acceptance.

    Acceptance is the mean over continuation positions of ``sum(min(target_probs, draft_probs))``: the share
    of drafted tokens maximal coupling accepts. ``model`` is any Hugging Face decoder with
    ``model.model.layers``.
    """
    layers = model.model.layers
    target_probs = [next_token_probs(model, continuation) for continuation in continuations]

    def acceptance_without(skipped: frozenset[int]) -> float:
        total, positions = 0.0, 0
        with skipping(layers, skipped):
            for continuation, expected in zip(continuations, target_probs, strict=True):
                overlap = torch.minimum(next_token_probs(model, continuation), expected).sum(-1)
                total, positions = total + float(overlap.sum()), positions + overlap.numel()
        return total / positions

    skipped: frozenset[int] = frozenset()
    candidates = list(range(len(layers)))
    best = 1.0
    for step in range(count):
        scores = {layer: acceptance_without(skipped | {layer}) for layer in candidates}
        ranked = sorted(candidates, key=lambda layer: (-scores[layer], layer))
        skipped, best = skipped | {ranked[0]}, scores[ranked[0]]
        candidates = ranked[1 : SHORTLIST + count] if step == 0 else ranked[1:]
        progress(f"{step + 1} of {count}: without layers {sorted(skipped)} acceptance is {best:.3f}")
    return LayerChoice(tuple(sorted(skipped)), best)


@contextlib.contextmanager
def skipping(layers: Sequence[torch.nn.Module], skipped: frozenset[int]) -> Iterator[None]:
    """Let the hidden state pass ``skipped`` layers unchanged inside the block; no index moves."""
    for index in skipped:
        layers[index].forward = _pass_through
    try:
        yield
    finally:
        for index in skipped:
            del layers[index].forward


def _pass_through(hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return hidden_states


@torch.inference_mode()
def next_token_probs(model: Any, continuation: Continuation) -> torch.Tensor:
    """``[positions, vocabulary]`` float32: the nucleus of each row that predicts a continuation token."""
    count = len(continuation.tokens) - continuation.prompt_length
    output = model(continuation.tokens[None], use_cache=False, logits_to_keep=count + 1)
    return nucleus(output.logits[0, :-1].float(), TOP_P)


def nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Probabilities ``[n, vocabulary]`` cut to the fewest most likely tokens whose sum reaches ``top_p``."""
    probs = torch.softmax(logits, dim=-1)
    ordered, ids = probs.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
    kept = torch.zeros_like(probs).scatter_(-1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)
