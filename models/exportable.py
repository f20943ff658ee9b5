"""Any Hugging Face decoder as a function from tokens and past rows to logits and new rows, ready to export.

The model's own code runs unchanged. Two of transformers' public seams make it exportable: a cache object
whose ``update`` hands past and new rows on side by side, and an attention function that scores the two parts
separately. So the past is never concatenated or copied, and the graph returns only the rows it made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache

from acespec.errors import AcespecError

ATTENTION_NAME = "acespec_split_rows"
# What models hand to an attention function that changes nothing here: the mask and positions say it already.
HARMLESS_ARGUMENTS = frozenset(
    {"cache_position", "is_causal", "output_attentions", "output_hidden_states", "position_ids", "use_cache"}
)
LENGTH_DEPENDENT_ROTARY = frozenset({"dynamic", "longrope"})


class UnsupportedModelError(AcespecError):
    """The model's architecture cannot be exported; the message names it and says why."""

    def __init__(self, architecture: str, reason: str) -> None:
        super().__init__(
            f"{architecture} cannot be exported: {reason}; choose a dense decoder such as Llama or Qwen3"
        )


class ModelFolderError(AcespecError):
    """A model folder cannot be loaded."""


@dataclass(frozen=True)
class SplitRows:
    """Keys or values of one layer: the past as the runtime stores it, and the rows of this step."""

    past: torch.Tensor  # [S, KVH, D]
    new: torch.Tensor  # [1, KVH, N, D]


@dataclass(frozen=True)
class DecoderShape:
    """What the runtime must know to hold a model's rows."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class SplitCache(Cache):
    """A cache for one step: holds each layer's past, records its new rows and concatenates nothing."""

    def __init__(self, past: list[tuple[torch.Tensor, torch.Tensor]] | None) -> None:
        """``past`` holds keys and values of each layer, ``[S, KVH, D]``; None is an empty past."""
        super().__init__(layers=[])
        self.past = past
        self.new: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(  # type: ignore[override]  # the attention function takes what this returns, nobody else looks
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[SplitRows, SplitRows]:
        """Record a layer's new rows ``[1, KVH, N, D]``; returns keys and values with their past."""
        assert layer_idx not in self.new, f"layer {layer_idx} was computed twice"
        self.new[layer_idx] = (key_states, value_states)
        if self.past is None:
            past_key, past_value = (new[0, :, :0].transpose(0, 1) for new in (key_states, value_states))
        else:
            past_key, past_value = self.past[layer_idx]
        return SplitRows(past_key, key_states), SplitRows(past_value, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.past is None else self.past[layer_idx][0].shape[0]


def split_rows_attention(
    module: nn.Module,  # noqa: ARG001 - transformers' signature
    query: torch.Tensor,
    key: SplitRows,
    value: SplitRows,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over past and new rows; registered with transformers under `ATTENTION_NAME`.

    ``query`` is ``[1, H, N, D]`` and ``attention_mask`` ``[1, 1, N, S + N]`` additive; returns
    ``[1, N, H, D]``. The G = H / KVH queries that share a key head are folded into the rows of one matrix
    product instead of repeating keys. Raises ``NotImplementedError`` for an argument that would change the
    result.
    """
    unknown = [name for name, given in kwargs.items() if given is not None and name not in HARMLESS_ARGUMENTS]
    if unknown or dropout:
        raise NotImplementedError(f"its attention needs {', '.join(sorted(unknown)) or 'dropout'}")
    _, num_heads, num_tokens, head_dim = query.shape
    num_past, num_kv_heads, _ = key.past.shape
    scale = head_dim**-0.5 if scaling is None else scaling

    folded = (query * scale).reshape(num_kv_heads, -1, head_dim)  # [KVH, G*N, D]
    past_scores = folded @ key.past.permute(1, 2, 0)  # [KVH, G*N, S]
    new_scores = folded @ key.new[0].transpose(1, 2)  # [KVH, G*N, N]
    scores = torch.cat([past_scores, new_scores], dim=-1)
    scores = scores.reshape(num_kv_heads, num_heads // num_kv_heads, num_tokens, -1) + attention_mask
    probs = torch.softmax(scores, dim=-1).reshape(num_kv_heads, -1, num_past + num_tokens)
    mixed = probs[..., :num_past] @ value.past.transpose(0, 1) + probs[..., num_past:] @ value.new[0]
    return mixed.reshape(1, num_heads, num_tokens, head_dim).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, split_rows_attention)


class ExportableDecoder(nn.Module):
    """A decoder as a pure function of one step.

    | argument       | shape                            | dtype   |
    |----------------|----------------------------------|---------|
    | `input_ids`    | `[1, N]`                         | int64   |
    | `position_ids` | `[1, N]`                         | int64   |
    | `mask`         | `[1, 1, N, S + N]`, additive     | float32 |
    | `past`         | 2 x layers of `[S, KVH, D]`      | float32 |
    | -> logits      | `[1, N, vocab_size]`             | float32 |
    | -> new rows    | 2 x layers of `[N, KVH, D]`      | float32 |

    Past and new rows come as key, value, key, value, ... of layers 0, 1, ...
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Take ``model`` and switch its attention to this module's; logits are cut to ``vocab_size``.

        Raises `UnsupportedModelError` when the model's code does not keep to the seams used here.
        """
        super().__init__()
        refuse_by_config(model)
        self.model = model
        self.vocab_size = vocab_size
        self.shape = self._probe()

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        mask: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        cache = SplitCache(list(zip(past[::2], past[1::2], strict=True)))
        logits = self._run(input_ids, position_ids, mask, cache)
        new_rows = [rows[0].transpose(0, 1) for layer in range(len(past) // 2) for rows in cache.new[layer]]
        return (logits, *new_rows)

    def _run(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, mask: torch.Tensor, cache: SplitCache
    ) -> torch.Tensor:
        output = self.model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=mask, cache=cache, use_cache=True
        )
        logits: torch.Tensor = output.logits
        return logits if logits.shape[-1] == self.vocab_size else logits[..., : self.vocab_size]

    @torch.no_grad()
    def _probe(self) -> DecoderShape:
        """Run two tokens through the model and read its shape off the rows it made."""
        architecture = type(self.model).__name__
        cache = SplitCache(None)
        tokens, positions = torch.zeros(1, 2, dtype=torch.int64), torch.arange(2)[None]
        try:
            self.model.set_attn_implementation(ATTENTION_NAME)
            logits = self._run(tokens, positions, torch.zeros(1, 1, 2, 2), cache)
        except Exception as error:  # foreign code may raise anything
            raise UnsupportedModelError(architecture, " ".join(str(error).split())) from error
        if logits.shape[-1] != self.vocab_size:
            raise UnsupportedModelError(
                architecture, f"its tokenizer has {self.vocab_size} tokens, its head only {logits.shape[-1]}"
            )
        shapes = {(*keys.shape, *values.shape) for keys, values in cache.new.values()}
        num_layers = len(cache.new)
        if sorted(cache.new) != list(range(num_layers)) or num_layers == 0:
            raise UnsupportedModelError(architecture, "not every layer keeps keys and values")
        if len(shapes) != 1:
            raise UnsupportedModelError(architecture, "its layers' keys and values differ in shape")
        _, num_kv_heads, _, head_dim, *value_shape = shapes.pop()
        if value_shape != [1, num_kv_heads, 2, head_dim]:
            raise UnsupportedModelError(architecture, "its keys and values differ in shape")
        return DecoderShape(num_layers, num_kv_heads, head_dim)


def refuse_by_config(model: PreTrainedModel) -> None:
    """Raise `UnsupportedModelError` for what a model's configuration already rules out."""
    config = model.config.get_text_config()
    architecture = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(architecture, "it keeps a recurrent state, which cannot be rolled back")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModelError(
            architecture, "its attention is not one of transformers' attention interface"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(architecture, "it has an encoder")
    layer_types = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if layer_types:
        raise UnsupportedModelError(architecture, f"it has {', '.join(sorted(layer_types))} layers")
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") in LENGTH_DEPENDENT_ROTARY:
        raise UnsupportedModelError(
            architecture, f"its rotary frequencies ({rotary['rope_type']}) change with the length of the text"
        )


def load_decoder(folder: Path) -> PreTrainedModel:
    """Load a causal language model from a Hugging Face folder at float32. Nothing is downloaded.

    Raises ``ModelFolderError`` if it cannot be loaded whole.
    """
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # each format and architecture has its own
        cause = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{folder} cannot be loaded as a causal language model: {cause}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:  # transformers has filled them with random values
        raise ModelFolderError(
            f"{folder} lacks {len(missing)} of the model's tensors, {missing[0]} first; fetch the model again"
        )
    assert isinstance(model, PreTrainedModel)
    return model
