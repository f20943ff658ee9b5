"""What a race costs the verifier if the edge sends no drafts: it is to be plain decoding.

That forwards are the same in number is tested; here is how long they take. Both ways decode the same text,
in turns, so that what else the machine does hits them alike.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from acespec.bench.processes import Service
from acespec.bench.verifier_load import connect, decode_text
from acespec.bench.verifier_server import SERVER
from acespec.errors import AcespecError
from acespec.models import resolve_model
from acespec.models.vocabulary import load_tokenizer, vocabulary_hash, vocabulary_size

PROMPT_LENGTH = 32
NUM_TOKENS = 48


@dataclass(frozen=True)
class SilentRace:
    """Medians over the turns, of the time a whole text takes."""

    plain_ms_per_token: float
    race_ms_per_token: float

    @property
    def ratio(self) -> float:
        """The race over plain decoding."""
        return self.race_ms_per_token / self.plain_ms_per_token


async def measure_silent_race(model: str, threads: int | None, num_turns: int) -> SilentRace:
    """Decode a text ``num_turns`` times each way; raises ``AcespecError`` if it is not the same text."""
    tokenizer_json = resolve_model(model) / "tokenizer.json"
    hashed, vocab_size = vocabulary_hash(tokenizer_json), vocabulary_size(load_tokenizer(tokenizer_json))
    prompt = np.random.default_rng(0).integers(vocab_size // 2, size=PROMPT_LENGTH).tolist()
    options = ["--model", model] + ([] if threads is None else ["--threads", str(threads)])
    texts: list[list[int]] = []
    taken: dict[bool, list[float]] = {False: [], True: []}
    async with (
        Service(*options, module=SERVER) as service,
        connect(service.address, 1) as (streams, *_),
    ):
        for turn in range(-1, num_turns):  # the first warms up
            for race in (False, True):
                began = time.perf_counter()
                texts.append(await decode_text(streams, hashed, vocab_size, prompt, NUM_TOKENS, race=race))
                if turn >= 0:
                    taken[race].append(1000.0 * (time.perf_counter() - began) / NUM_TOKENS)
    if any(text != texts[0] for text in texts):
        raise AcespecError("a race without drafts gave another text than plain decoding")
    return SilentRace(*(statistics.median(taken[race]) for race in (False, True)))
