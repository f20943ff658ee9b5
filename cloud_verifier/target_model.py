"""Loading a Hugging Face folder as a target: the model, and what sessions are checked against."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from acespec.cloud_verifier.engine import TargetInfo
from acespec.errors import AcespecError
from acespec.models.architecture import positions_without_switch
from acespec.models.fingerprint import model_fingerprint
from acespec.models.vocabulary import load_tokenizer, vocabulary_hash, vocabulary_size

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DeviceMap = str | Mapping[str, str | int]
"""``auto`` or another of accelerate's ways to spread layers over devices, or a device by module name."""


def load_model(
    folder: Path, *, dtype: str, device: str = "cpu", device_map: DeviceMap | None = None, tp: bool = False
) -> PreTrainedModel:
    """The decoder in ``folder``, on ``device``, or spread by ``device_map``, or this rank's shard of it.

    Raises ``AcespecError`` if a device is not there, or the decoder cannot be loaded whole.
    """
    for name in _devices(device, device_map):
        check_device(name)
    if dtype != "float32":
        logger.warning(
            "the target runs at %s: a token whose probability nearly ties with another's may come out "
            "differently at another chain length; float32 is the dtype for which texts are compared",
            dtype,
        )
    placement: dict[str, Any] = {}
    if tp:
        placement = _sharding(folder)
    elif device_map is not None:
        placement = {"device_map": device_map if isinstance(device_map, str) else dict(device_map)}
    elif device != "cpu":
        placement = {"device_map": {"": device}}  # straight there, not through the machine's memory
    placement["output_loading_info"] = True
    model, report = _loaded(folder, AutoModelForCausalLM, dtype=DTYPES[dtype], **placement)
    missing = sorted(report["missing_keys"])
    if missing:  # Transformers would serve them with random values
        raise AcespecError(
            f"{folder} lacks {len(missing)} of the model's tensors, {missing[0]} first; fetch the model again"
        )
    assert isinstance(model, PreTrainedModel)
    return model


def target_info(folder: Path) -> TargetInfo:
    """What the target in ``folder`` says about itself; it is called by the folder's name. Loads no weights.

    Raises ``AcespecError`` for a folder without a model or a tokenizer, or with another model's tokenizer.
    """
    tokenizer_json = folder / "tokenizer.json"
    vocab_size = vocabulary_size(load_tokenizer(tokenizer_json))
    decoder = _loaded(folder, AutoConfig).get_text_config(decoder=True)
    if vocab_size > decoder.vocab_size:
        raise AcespecError(
            f"the tokenizer in {folder} has {vocab_size} tokens but the model knows {decoder.vocab_size}; "
            "use the tokenizer that belongs to the model"
        )
    return TargetInfo(
        name=folder.resolve().name,
        fingerprint=model_fingerprint(folder),
        vocabulary_hash=vocabulary_hash(tokenizer_json),
        vocab_size=vocab_size,
        max_context=known_positions(decoder),
    )


def known_positions(config: PretrainedConfig) -> int:
    """Positions a session may use: those the model knows, as long as its cached rows stay valid."""
    known = int(config.max_position_embeddings)
    limit = positions_without_switch(config)
    if limit is None or limit >= known:
        return known
    logger.warning(
        "contexts are cut to %d tokens: beyond, LongRoPE changes its frequencies and cached rows with them",
        limit,
    )
    return limit


def check_device(device: str) -> None:
    """Raise ``AcespecError`` if PyTorch has no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise AcespecError(
            f"PyTorch cannot use the device {device!r} ({reason}); try --device cpu"
        ) from error


def _devices(device: str, device_map: DeviceMap | None) -> set[str]:
    """The devices that are named: neither ``disk``, where weights may stay, nor accelerate's words."""
    if isinstance(device_map, Mapping):
        names = {f"cuda:{name}" if isinstance(name, int) else name for name in device_map.values()}
        return names - {"disk"}
    return set() if device_map is not None else {device}


def _sharding(folder: Path) -> dict[str, Any]:
    from acespec.cloud_verifier.tensor_parallel_load import sharding_arguments  # takes torch.distributed

    return sharding_arguments(_loaded(folder, AutoConfig))


def _loaded(folder: Path, kind: Any, **arguments: Any) -> Any:
    """What the Auto class ``kind`` makes of ``folder``, without the network. Raises ``AcespecError``."""
    try:
        return kind.from_pretrained(folder, local_files_only=True, **arguments)
    except Exception as error:  # each format and architecture has its own
        reason = " ".join(str(error).split())[:300]
        raise AcespecError(
            f"no target can be loaded from {folder} ({reason}); fetch the model again, or name another"
        ) from error
