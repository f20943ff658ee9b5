"""The two models of a laboratory: what identifies them, and where the real ones are when a row is missing."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from acespec.bench.lab.row_codec import ROW_FORMAT
from acespec.cloud_verifier.engine import TargetInfo
from acespec.errors import AcespecError
from acespec.machine import this_processor

if TYPE_CHECKING:
    from acespec.bench.lab.row_sources import DraftSource, TargetSource
    from acespec.models.manifest import Bundle

IDENTITY_FILE = "pair.json"
THREADS = 1
"""Of each real model: how many share a sum changes its last bits."""


class PairIdentity(BaseModel):
    """What decides every row of a pair: models, how the draft is stored, and what computed the rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    draft_fingerprint: str
    draft_precision: str
    target_name: str
    target_fingerprint: str
    vocabulary_hash: str
    vocab_size: int
    end_token_ids: tuple[int, ...]
    draft_context: int
    draft_prefill_width: int
    """Prompt tokens the draft is fed in one step."""
    target_context: int
    computed_by: str
    """Libraries and processor: others give other last bits."""
    row_format: int = ROW_FORMAT

    @property
    def key(self) -> str:
        """A name for all of it: 12 hexadecimal digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    @property
    def target_info(self) -> TargetInfo:
        """What the target says of itself to a verifier."""
        return TargetInfo(
            self.target_name,
            self.target_fingerprint,
            self.vocabulary_hash,
            self.vocab_size,
            self.target_context,
        )


@dataclass(frozen=True)
class LabPair:
    """A pair, with the real models to be loaded when a row is missing; None: only recorded rows are there."""

    identity: PairIdentity
    open_draft: Callable[[], DraftSource] | None = None
    open_target: Callable[[], TargetSource] | None = None


def real_pair(name: str, bundle: Bundle, target_folder: Path) -> LabPair:
    """The draft of ``bundle`` on ONNX Runtime and the target of a Hugging Face folder on PyTorch, float32."""
    from acespec.cloud_verifier.target_model import target_info  # brings torch

    manifest, info = bundle.manifest, target_info(target_folder)
    variant = manifest.graphs[0]
    identity = PairIdentity(
        name=name,
        draft_fingerprint=_bundle_fingerprint(bundle),
        draft_precision=manifest.precision,
        target_name=info.name,
        target_fingerprint=info.fingerprint,
        vocabulary_hash=info.vocabulary_hash,
        vocab_size=info.vocab_size,
        end_token_ids=manifest.end_token_ids,
        draft_context=manifest.max_context,
        draft_prefill_width=variant.prefill.width if variant.prefill else variant.buckets[-1],
        target_context=info.max_context,
        computed_by=_computed_by(),
    )

    def open_draft() -> DraftSource:
        from acespec.bench.lab.copying_engine import CopyingEngine
        from acespec.bench.lab.row_sources import EngineDraftSource

        return EngineDraftSource(CopyingEngine(bundle, THREADS))

    def open_target() -> TargetSource:
        from acespec.bench.lab.row_sources import EngineTargetSource
        from acespec.cloud_verifier.transformers_engine import TransformersEngine

        return EngineTargetSource(TransformersEngine.load(target_folder, threads=THREADS))

    return LabPair(identity, open_draft, open_target)


def demo_pair(say: Callable[[str], None]) -> LabPair:
    """The demo's pair, made if it is not in the cache yet."""
    from acespec.bench.demo import PAIR, prepare
    from acespec.models import resolve_model

    return real_pair(PAIR.name, prepare(say), resolve_model(PAIR.target))


def recorded_pair(folder: Path) -> LabPair:
    """The pair whose rows lie in ``folder``, without its models: whatever is missing there fails the run.

    Raises ``AcespecError`` if no rows were recorded there.
    """
    path = folder / IDENTITY_FILE
    try:
        return LabPair(PairIdentity.model_validate_json(path.read_bytes()))
    except OSError as error:
        raise AcespecError(
            f"cannot read {path}: {error.strerror or error}; name a recorded folder"
        ) from error
    except ValidationError as error:
        raise AcespecError(f"{path} does not describe a recorded pair: {error.errors()[0]['msg']}") from error


def _bundle_fingerprint(bundle: Bundle) -> str:
    """Names a bundle's graphs and weights, not its tokenizer or latencies."""
    variant = bundle.manifest.graphs[0]
    hashes = sorted(bundle.manifest.file_sha256[name] for name in set(variant.files))
    return hashlib.sha256("".join([bundle.manifest.source_fingerprint, *hashes]).encode()).hexdigest()


def _computed_by() -> str:
    libraries = ("numpy", "onnxruntime", "torch", "transformers")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in libraries]
    return ", ".join([*versions, this_processor()])
