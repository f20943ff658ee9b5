"""What a benchmark's session says and what it must hear, encoded before the clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acespec.speculation import SamplingParams
from acespec.wire import (
    SEQ_MODULUS,
    AcceptanceMode,
    Codec,
    Open,
    PrefixCheck,
    Round,
    ServerTimes,
    TokenVerdict,
    encode_open,
)
from acespec.wire import verifier_pb2 as pb

CHAIN = 4
"""Chain tokens of a round."""
ROUND_TOKENS = CHAIN + 1
"""Tokens a round commits: its chain stands, and the target puts one more."""


@dataclass(frozen=True)
class Script:
    """One session in coupled mode at temperature 0: the chain of every round is what the target picks."""

    prompt_length: int
    open: bytes
    rounds: tuple[bytes, ...]
    """A ``Round`` each, in their order."""
    verdicts: tuple[int, ...]
    """The message that answers each, as an integer whose bits of the server's times are 0."""
    mask: int
    """Has 0 for the bits of the server's times and 1 for all others."""

    def committed(self, num_rounds: int) -> int:
        """Committed tokens after so many rounds."""
        return self.prompt_length + ROUND_TOKENS * num_rounds

    def accepts(self, index: int, answer: bytes) -> bool:
        """Whether ``answer`` is the verdict on round ``index``."""
        return int.from_bytes(answer, "big") & self.mask == self.verdicts[index]


def write_script(
    vocabulary_hash: str, vocab_size: int, prompt: Sequence[int], continuation: Sequence[int]
) -> Script:
    """The rounds that go over ``continuation``, the target's greedy one of ``prompt``, five tokens each."""
    codec = Codec(vocab_size, AcceptanceMode.COUPLED)
    num_rounds = len(continuation) // ROUND_TOKENS
    token_limit = len(prompt) + ROUND_TOKENS * num_rounds + 1
    check = PrefixCheck(prompt)
    rounds, verdicts = [], []
    for index in range(num_rounds):
        tokens = tuple(continuation[ROUND_TOKENS * index : ROUND_TOKENS * (index + 1)])
        seq = index % SEQ_MODULUS
        rounds.append(codec.encode_edge(Round(seq, check.value, tokens[:CHAIN])).SerializeToString())
        verdicts.append(_verdict(codec, seq, tokens[CHAIN], ServerTimes(0.0, 0.0)))
        check.update(tokens)
    forever = ServerTimes(1e9, 1e9)  # all bits 1, where the shortest times have all bits 0
    times = _verdict(codec, 0, 0, ServerTimes(0.0, 0.0)) ^ _verdict(codec, 0, 0, forever)
    return Script(
        prompt_length=len(prompt),
        open=encode_greedy_open(vocabulary_hash, vocab_size, prompt, token_limit).SerializeToString(),
        rounds=tuple(rounds),
        verdicts=tuple(verdicts),
        mask=~times,
    )


def encode_greedy_open(
    vocabulary_hash: str, vocab_size: int, prompt: Sequence[int], token_limit: int, race: bool = False
) -> pb.EdgeMessage:
    """What begins a session in coupled mode at temperature 0 that no token ends."""
    return encode_open(
        Open(
            model="",
            fingerprint="",
            vocabulary_hash=vocabulary_hash,
            vocab_size=vocab_size,
            end_token_ids=(),
            sampling=SamplingParams(temperature=0.0),
            seed=1,
            mode=AcceptanceMode.COUPLED,
            committed=tuple(prompt),
            prompt_length=len(prompt),
            token_limit=token_limit,
            race=race,
        )
    )


def _verdict(codec: Codec, seq: int, next_token: int, times: ServerTimes) -> int:
    message = codec.encode_cloud(TokenVerdict(seq, CHAIN, next_token, times))
    return int.from_bytes(message.SerializeToString(), "big")
