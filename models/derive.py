"""Training-free drafts: a target without some of its decoder layers.

Works on the files alone, streaming tensor bytes from one safetensors file to the other. So it needs neither
torch nor memory, keeps every weight bit for bit, and does not care what architecture the layers have.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from acespec.errors import AcespecError
from acespec.models.cache import complete_or_absent
from acespec.models.files import (
    MODEL_FILES,
    WEIGHT_INDEX,
    StoredTensor,
    read_json_object,
    read_tensors,
    weight_files,
)
from acespec.models.fingerprint import model_fingerprint
from acespec.models.record import RECORD_NAME, ModelRecord

LAYER_TENSOR = re.compile(r"(?P<stack>(?:\w+\.)*?(?:layers|h|blocks))\.(?P<index>\d+)\.(?P<rest>.+)")
"""Name of a tensor that belongs to a decoder layer, such as ``model.layers.7.mlp.up_proj.weight``."""
PERIODIC_KEYS = (
    "attn_layer_period",
    "decoder_sparse_step",
    "expert_layer_period",
    "first_k_dense_replace",
    "full_attention_interval",
    "full_attn_idxs",
    "global_attn_every_n_layers",
    "interleave_moe_layer_step",
    "mlp_only_layers",
    "no_rope_layer_interval",
    "num_kv_shared_layers",
    "sliding_window_pattern",
)
"""Config entries that give layers their kind by number: leaving some out would change the others."""
COPY_BYTES = 1 << 24


def derive_draft(
    target: Path, destination: Path, skipped_layers: Collection[int], origin: str
) -> ModelRecord:
    """Make a model folder at ``destination``: ``target`` without ``skipped_layers``, with the same tokenizer.

    Layers count from 0. ``origin`` is how the record names the target. Raises ``AcespecError`` for layers
    that do not exist, a model whose layers cannot be told apart, or a destination that exists.
    """
    if destination.exists():
        raise AcespecError(f"{destination} exists already; delete it or choose another name")
    config = read_json_object(target / "config.json")
    kept = kept_layers(config, skipped_layers)
    with complete_or_absent(destination) as staging:
        for pattern in MODEL_FILES:
            for path in target.glob(pattern):
                if path.suffix != ".safetensors" and path.name not in (WEIGHT_INDEX, RECORD_NAME):
                    shutil.copy(path, staging / path.name)
        (staging / "config.json").write_text(json.dumps(thinned_config(config, kept), indent=2) + "\n")
        _copy_weights(weight_files(target), staging, kept)
        record = ModelRecord(
            name=destination.name,
            source="derived",
            origin=origin,
            fingerprint=model_fingerprint(staging),
            target_fingerprint=model_fingerprint(target),
            skipped_layers=tuple(sorted(skipped_layers)),
        )
        record.write(staging)
    return record


def kept_layers(config: dict[str, Any], skipped_layers: Collection[int]) -> tuple[int, ...]:
    """The layers that stay, ascending. Raises ``AcespecError`` unless at least one goes and one stays."""
    count = config.get("num_hidden_layers")
    if not isinstance(count, int):
        raise AcespecError("the target's config.json has no num_hidden_layers: it is no plain decoder")
    unknown = sorted(layer for layer in skipped_layers if not 0 <= layer < count)
    if unknown:
        raise AcespecError(f"the target has layers 0 to {count - 1}; it has no layer {unknown[0]} to skip")
    if not skipped_layers or len(set(skipped_layers)) == count:
        raise AcespecError(f"skip at least one layer and at most {count - 1}")
    return tuple(layer for layer in range(count) if layer not in skipped_layers)


def thinned_config(config: dict[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """``config`` for the kept layers alone: their number, and every list with one entry a layer.

    Raises ``AcespecError`` for a model that numbers its layers' kinds in a way that would shift.
    """
    count = config["num_hidden_layers"]
    periodic = next((key for key in PERIODIC_KEYS if config.get(key)), None)
    if periodic is not None and "layer_types" not in config:
        raise AcespecError(f"the target's config.json has {periodic}: its layers cannot be skipped")
    thinned = dict(config)
    for key, value in config.items():
        if isinstance(value, list) and len(value) == count and ("layer" in key or "block" in key):
            thinned[key] = [value[layer] for layer in kept]
    thinned["num_hidden_layers"] = len(kept)
    return thinned


def _copy_weights(files: Sequence[Path], destination: Path, kept: Sequence[int]) -> None:
    """Write each weights file again without the skipped layers, and an index if there are several."""
    contents = {path: read_tensors(path) for path in files}
    renamed = _renamed([tensor.name for tensors in contents.values() for tensor in tensors], kept)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for path, tensors in contents.items():
        staying = [(tensor, renamed[tensor.name]) for tensor in tensors if tensor.name in renamed]
        if staying:
            _copy_tensors(path, destination / path.name, staying)
            weight_map |= {name: path.name for _, name in staying}
            total_bytes += sum(tensor.end - tensor.begin for tensor, _ in staying)
    if len(files) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (destination / WEIGHT_INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _renamed(names: Sequence[str], kept: Sequence[int]) -> dict[str, str]:
    """The new name of every tensor that stays; a layer's number becomes its place among the kept ones."""
    matches = {name: LAYER_TENSOR.fullmatch(name) for name in names}
    stacks = {match["stack"] for match in matches.values() if match}
    if len(stacks) != 1:
        found = ", ".join(sorted(stacks)) or "none"
        raise AcespecError(f"the target must have one stack of decoder layers; found: {found}")
    new_index = {layer: position for position, layer in enumerate(kept)}
    renamed = {}
    for name, match in matches.items():
        if match is None:
            renamed[name] = name
        elif (layer := int(match["index"])) in new_index:
            renamed[name] = f"{match['stack']}.{new_index[layer]}.{match['rest']}"
    return renamed


def _copy_tensors(source: Path, destination: Path, tensors: Sequence[tuple[StoredTensor, str]]) -> None:
    """Write a safetensors file of ``tensors``, each under its new name, copying bytes from ``source``."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor, name in tensors:
        size = tensor.end - tensor.begin
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format wants the data aligned
    with source.open("rb") as reader, destination.open("wb") as writer:
        writer.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor, _ in tensors:
            reader.seek(tensor.begin)
            remaining = tensor.end - tensor.begin
            while remaining:
                block = reader.read(min(COPY_BYTES, remaining))
                assert block, f"{source} shrank while it was read"
                writer.write(block)
                remaining -= len(block)
