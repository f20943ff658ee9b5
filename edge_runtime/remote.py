"""One generation with a verifier somewhere else: a bundle's draft here, gRPC connections of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.grpc_transport import GrpcConnector, LinkSettings
from acespec.edge_runtime.outage import LinkChange, OutageSettings, ignore_change
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity, ignore
from acespec.models.manifest import Bundle


@dataclass(frozen=True)
class RemoteSettings:
    """How to reach a verifier, and what to do when it is out of reach."""

    link: LinkSettings = field(default_factory=LinkSettings)
    outage: OutageSettings = field(default_factory=OutageSettings)
    pad_sizes: bool = False
    """Hide the sizes of messages, also from servers that do not ask for it."""


async def generate_remotely(
    server: str,
    bundle: Bundle,
    request: GenerationRequest,
    draft: DraftModel | None,
    settings: DraftSettings,
    on_tokens: Callable[[list[int]], object],
    remote: RemoteSettings | None = None,
    on_provisional: Callable[[list[int]], object] = ignore,
    on_change: Callable[[LinkChange], object] = ignore_change,
) -> GenerationResult:
    """Connect to ``server`` (``HOST:PORT``), generate ``request`` and disconnect.

    The target must have the bundle's vocabulary. ``draft`` None lets the cloud decode alone. Raises
    ``AcespecError`` for an address that is none and for unusable credentials, and what ``generate`` raises.
    """
    manifest = bundle.manifest
    remote = remote or RemoteSettings()
    return await generate(
        GrpcConnector(server, remote.link),
        request,
        manifest.vocab_size,
        draft,
        settings,
        SessionSettings(
            TargetIdentity(vocabulary_hash=manifest.vocabulary_hash), remote.outage, remote.pad_sizes
        ),
        on_tokens,
        on_provisional,
        on_change,
    )
