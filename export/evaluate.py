"""What a draft lost on its way into a bundle: its next-token distributions against the unquantised model's.

Of two distributions p and q, the chance that a token drawn from q survives speculative decoding's test
against p is the sum over tokens of min(p, q) (Leviathan et al., 2023, section 3). Here p is the unquantised
model and q the exported draft, so 1 means that nothing was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from tokenizers import Tokenizer
from transformers import DynamicCache, PreTrainedModel

from acespec.errors import AcespecError
from acespec.models.bundle_report import weights_format
from acespec.models.chat import ChatTemplate
from acespec.models.exportable import load_decoder
from acespec.models.fingerprint import check_source
from acespec.models.manifest import Bundle
from acespec.models.vocabulary import load_tokenizer
from acespec.speculation import DraftLogits

NextTokenLogits = Callable[[NDArray[np.int64]], DraftLogits]
"""A draft as a function: logits of every position of a text, fed from its first token on."""

EVAL_PROMPTS = 24
EVAL_PROMPT_TOKENS = 160
EVAL_NEW_TOKENS = 16


@dataclass(frozen=True)
class Agreement:
    """How alike two models' next-token distributions are, over all positions of some texts."""

    num_positions: int
    expected_acceptance: float
    """Mean over positions of the sum over tokens of min(p, q), at temperature 1."""
    top1_agreement: float
    """Share of positions at which both find the same token likeliest."""
    mean_kl_nats: float
    """Mean divergence of the draft from the model. Of a draft that returns its largest logits alone, the
    tokens it leaves out count as one."""


@dataclass(frozen=True)
class EvaluationRow:
    """One line of the report."""

    name: str
    """How weights are stored (`weights_format`)."""
    bundle_bytes: int
    step_ms: float | None
    """Median time of a one-token step; None: not measured."""
    agreement: Agreement


def read_prompts(file: Path, count: int = EVAL_PROMPTS) -> list[str]:
    """The first ``count`` prompts of a file with one JSON object a line that has a ``prompt``.

    Raises ``AcespecError`` when the file cannot be read, has a line of another kind, or is empty.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AcespecError(
            f"prompts {file} cannot be read ({reason}); name a JSONL file of prompts"
        ) from None
    prompts: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and len(prompts) < count:
            prompts.append(_prompt(line, f"{file}, line {number}"))
    if not prompts:
        raise AcespecError(f'{file} holds no prompts; each line must be like {{"prompt": "…"}}')
    return prompts


def _prompt(line: str, place: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
        prompt.encode()  # half a surrogate pair, which JSON can spell, is no text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise AcespecError(f'{place} is no prompt; each line must be like {{"prompt": "…"}}')
    return prompt


def bundle_template(bundle: Bundle) -> ChatTemplate | None:
    """The template the bundle's chats have, if its model is made for them."""
    text, manifest = bundle.chat_template, bundle.manifest
    return None if text is None else ChatTemplate(text, manifest.bos_token, manifest.eos_token)


def encode_prompts(
    prompts: Iterable[str],
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    max_tokens: int = EVAL_PROMPT_TOKENS,
) -> list[NDArray[np.int64]]:
    """Tokens ``[n]`` of each prompt, as a message of a chat where the model has a template; the first
    ``max_tokens`` at most."""
    texts = []
    for prompt in prompts:
        text = prompt if template is None else template.render(prompt)
        ids = tokenizer.encode(text, add_special_tokens=template is None).ids
        if ids:
            texts.append(np.array(ids[:max_tokens], np.int64))
    return texts


@torch.no_grad()
def continue_greedily(
    model: PreTrainedModel, text: NDArray[np.int64], count: int, vocab_size: int
) -> NDArray[np.int64]:
    """``text`` ``[n]`` and ``count`` tokens, each the likeliest after those before it; no token ends it."""
    cache, tokens = DynamicCache(config=model.config), torch.from_numpy(text)[None]
    new: list[int] = []
    for _ in range(count):
        output = model(input_ids=tokens, cache=cache, use_cache=True)
        new.append(int(output.logits[0, -1, :vocab_size].argmax()))
        tokens = torch.tensor([new[-1:]])
    return np.concatenate([text, np.array(new, np.int64)])


@torch.no_grad()
def measure_agreement(
    draft: NextTokenLogits, model: PreTrainedModel, texts: Sequence[NDArray[np.int64]], vocab_size: int
) -> Agreement:
    """Compare ``draft`` with ``model``, a Hugging Face model with its own attention, on ``texts``."""
    assert texts
    sums = np.zeros(3)
    for text in texts:
        logits = model(input_ids=torch.from_numpy(text)[None], use_cache=False).logits[0, :, :vocab_size]
        rows = draft(text)
        assert len(rows) == len(text), (len(rows), len(text))
        for index, row in enumerate(logits.numpy()):
            sums += _compare_row(row, rows, index)
    count = sum(map(len, texts))
    acceptance, top1, divergence = (sums / count).tolist()
    return Agreement(count, acceptance, top1, divergence)


def _compare_row(
    model_logits: NDArray[np.float32], draft: DraftLogits, index: int
) -> tuple[float, float, float]:
    """Sum of min(p, q), whether the likeliest tokens are the same, and the divergence."""
    log_p = _log_softmax(model_logits)
    row = draft[index]
    log_q = _log_softmax(row.values)  # what the drafter draws from: of the tokens it has
    listed = log_p if row.ids is None else log_p[row.ids]
    likeliest = int(row.values.argmax()) if row.ids is None else int(row.ids[row.values.argmax()])
    overlap = np.exp(np.minimum(listed, log_q)).sum()
    if row.log_sum_exp is not None:
        log_q = row.values.astype(np.float64) - row.log_sum_exp
    p, q = np.exp(listed), np.exp(log_q)
    divergence = (p * (listed - log_q)).sum()
    if row.ids is not None:
        rest = max(1 - p.sum(), 1e-12), max(1 - q.sum(), 1e-12)
        divergence += rest[0] * np.log(rest[0] / rest[1])
    return float(overlap), float(likeliest == model_logits.argmax()), float(divergence)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def evaluate_bundle(
    bundle: Bundle,
    model_folder: Path,
    prompts: Sequence[str],
    draft: NextTokenLogits,
    step_ms: float | None = None,
) -> EvaluationRow:
    """The report's line for ``bundle``: run by ``draft``, against the model in ``model_folder`` in floats.

    The prompts are cut to `EVAL_PROMPT_TOKENS` and go on for `EVAL_NEW_TOKENS`, or less in a short context.
    Raises ``AcespecError`` when the bundle was exported from another model.
    """
    manifest = bundle.manifest
    check_source(bundle, model_folder)
    model = load_decoder(model_folder)
    template = bundle_template(bundle)
    new_tokens = min(EVAL_NEW_TOKENS, manifest.max_context // 2)
    max_tokens = min(EVAL_PROMPT_TOKENS, manifest.max_context - new_tokens)
    tokenizer = load_tokenizer(bundle.tokenizer_path)
    starts = encode_prompts(prompts, tokenizer, template, max_tokens)
    texts = [continue_greedily(model, start, new_tokens, manifest.vocab_size) for start in starts]
    agreement = measure_agreement(draft, model, texts, manifest.vocab_size)
    size = sum(file.stat().st_size for file in bundle.folder.iterdir())
    return EvaluationRow(weights_format(manifest), size, step_ms, agreement)


HEADINGS = ("precision", "size", "step", "acceptance", "same top token", "KL")


def _cells(row: EvaluationRow) -> tuple[str, ...]:
    """The cells of a line under `HEADINGS`."""
    return (
        row.name,
        f"{row.bundle_bytes / 1e6:.0f} MB",
        "-" if row.step_ms is None else f"{row.step_ms:.1f} ms",
        f"{row.agreement.expected_acceptance:.3f}",
        f"{row.agreement.top1_agreement:.1%}",
        f"{row.agreement.mean_kl_nats:.4f}",
    )


def report_table(rows: Sequence[EvaluationRow]) -> Table:
    """The report for a terminal, a line a precision."""
    table = Table(caption=_caption(rows))
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _caption(rows: Sequence[EvaluationRow]) -> str:
    counts = sorted({row.agreement.num_positions for row in rows})
    return f"against the unquantised model at {' or '.join(map(str, counts))} positions, temperature 1"
