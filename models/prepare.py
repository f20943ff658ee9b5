"""Everything a pair needs, on this machine."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from acespec.models.cache import models_folder
from acespec.models.catalog import MODELS, KnownModel
from acespec.models.derive import derive_draft
from acespec.models.fetch import Say, fetch
from acespec.models.fingerprint import model_fingerprint
from acespec.models.pairs import Pair
from acespec.models.record import read_record
from acespec.models.sources import plan_fetch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairFolders:
    """A pair's models on this machine."""

    target: Path
    draft: Path


def ensure_pair(pair: Pair, say: Say = logger.info) -> PairFolders:
    """Fetch or derive whatever of the pair is not in the cache yet.

    A derived draft is made again when its target or the layers to skip are no longer those it was made with.
    Raises ``AcespecError`` as ``fetch`` and ``derive_draft`` do.
    """
    return PairFolders(_ensure(MODELS[pair.target], say), _ensure(MODELS[pair.draft], say))


def _ensure(model: KnownModel, say: Say) -> Path:
    if model.derived is None:
        return fetch(plan_fetch(model.name), say).folder
    target = _ensure(MODELS[model.derived.target], say)
    folder = models_folder() / model.name
    layers = model.derived.skipped_layers
    record = read_record(folder)
    if record is not None:
        if record.skipped_layers == layers and record.target_fingerprint == model_fingerprint(target):
            return folder
        say(f"{model.name} was made from another target or with other layers; making it again")
        shutil.rmtree(folder)
    say(f"{model.name}: leaving {len(layers)} layers out of {model.derived.target}")
    derive_draft(target, folder, layers, origin=model.derived.target)
    return folder
