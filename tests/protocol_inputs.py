"""What an edge may ask of a verifier, and what others may send it, as Hypothesis draws them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.speculation import SamplingParams
from acespec.wire import (
    AcceptanceMode,
    Codec,
    Open,
)
from acespec.wire import verifier_pb2 as pb
from verifier_world import VOCAB, Attempt
from wire_messages import edge_messages

LIMITS = Limits(
    max_sessions=5,
    max_chain=6,
    open_timeout_s=1.0,
    idle_timeout_s=20.0,
    write_timeout_s=1.0,
    resume_ttl_s=8.0,
    evict_after_s=0.1,
    busy_retry_ms=20,
    token_budget=16,
    max_race_nodes=9,
    max_race_width=5,
)
TENANTS = (
    Tenant("first"),
    Tenant("second", Quota(max_sessions=3, kv_bytes=100 * 1024)),
    Tenant("third", Quota(tokens_per_s=60.0)),
)
tenants = st.sampled_from(TENANTS)


@st.composite
def coupled_opens(draw: st.DrawFn, max_tokens: int = 50) -> Open:
    """What an edge begins with."""
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12))
    return Open(
        model="",
        fingerprint="",
        vocabulary_hash="a" * 64,
        vocab_size=VOCAB,
        end_token_ids=draw(st.sampled_from([(), (), (0,), (3, 8)])),
        sampling=draw(
            st.sampled_from([SamplingParams(), SamplingParams(temperature=0.0, repetition_penalty=1.2)])
        ),
        seed=draw(st.integers(0, 3)),
        mode=AcceptanceMode.COUPLED,
        committed=tuple(prompt),
        prompt_length=len(prompt),
        token_limit=draw(st.integers(len(prompt) + 1, max_tokens) | st.just(max_tokens)),
        race=draw(st.booleans()),
    )


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """A peer that sends anything: nonsense, valid messages out of place, sessions of its own left open."""
    mode = draw(st.sampled_from(AcceptanceMode))
    codec = Codec(VOCAB, mode)
    anything = edge_messages(VOCAB, mode).map(codec.encode_edge)
    begins = coupled_opens().map(lambda request: codec.encode_edge(replace(request, mode=mode)))
    empty = st.just(pb.EdgeMessage())
    messages = draw(st.lists(anything | empty, max_size=3))
    if draw(st.booleans()):
        messages.insert(0, draw(begins))
    return Attempt(tuple(messages), draw(st.sampled_from([0, 0, 30, 2000])), draw(st.booleans()))
