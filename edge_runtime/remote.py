"""One generation with a verifier somewhere else: a bundle's draft here, a gRPC connection of its own."""

from __future__ import annotations

from collections.abc import Callable

from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.generate import GenerationResult, TargetIdentity, generate
from acespec.edge_runtime.grpc_transport import VerifierChannel
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.models.manifest import Bundle


async def generate_remotely(
    server: str,
    bundle: Bundle,
    request: GenerationRequest,
    draft: DraftModel | None,
    settings: DraftSettings,
    on_tokens: Callable[[list[int]], object],
    connect_timeout_s: float = 10.0,
) -> GenerationResult:
    """Connect to ``server`` (``HOST:PORT``), generate ``request`` and disconnect.

    The target must have the bundle's vocabulary. ``draft`` None lets the cloud decode alone. Raises
    ``AcespecError`` for an address that is none, and what ``generate`` raises.
    """
    manifest = bundle.manifest
    identity = TargetIdentity(vocabulary_hash=manifest.vocabulary_hash)
    async with VerifierChannel(server, connect_timeout_s) as channel:
        return await generate(
            channel.session(), request, manifest.vocab_size, draft, settings, identity, on_tokens
        )
