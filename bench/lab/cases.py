"""Prompts to run: data sets of JSON lines, as the tokens a model sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acespec.errors import AcespecError

if TYPE_CHECKING:
    from acespec.models.manifest import Bundle

Encode = Callable[[str], Sequence[int]]
"""Turns a prompt's text into token ids."""


@dataclass(frozen=True)
class PromptCase:
    """One prompt of a data set."""

    dataset: str
    id: str
    prompt: tuple[int, ...]
    """Token ids, in the model's chat template."""


def load_cases(path: Path, encode: Encode, limit: int | None = None) -> list[PromptCase]:
    """The first ``limit`` prompts of a file of JSON lines with ``prompt`` and perhaps ``id``.

    The data set is called as the file, without its suffix. Raises ``AcespecError`` naming the line that is
    wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AcespecError(f"cannot read {path}: {error}; give a file of JSON lines") from error
    cases: list[PromptCase] = []
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(cases) >= limit:
            break
        if line.strip():
            name, text = _read(path, number, line)
            cases.append(PromptCase(path.stem, name, tuple(encode(text))))
    if not cases:
        raise AcespecError(f"{path} has no prompt")
    return cases


def chat_encoder(bundle: Bundle) -> Encode:
    """How ``acespec generate`` encodes a prompt for the bundle's model."""
    from acespec.edge_runtime.text import encode_prompt
    from acespec.models import load_tokenizer

    tokenizer = load_tokenizer(bundle.tokenizer_path)
    return lambda text: encode_prompt(tokenizer, bundle, text, chat=True)


def _read(path: Path, number: int, line: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise AcespecError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str) or not entry["prompt"]:
        raise AcespecError(f"{path}, line {number} has no prompt: it must be an object with a text there")
    return str(entry.get("id", number)), entry["prompt"]
