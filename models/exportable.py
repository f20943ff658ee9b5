"""Any Hugging Face decoder as a function from tokens to logits whose attention is left open, ready to export.

The model's own code runs unchanged. Two of transformers' public seams make it exportable: a cache object that
keeps nothing, and an attention function that is one operator, `acespec::attention`. What comes before a step
is not in here at all: each graph form gives the operator its past in its own way (``export``).
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
from acespec.models.architecture import UnsupportedModelError, attention_masks, refuse_by_config
from acespec.models.manifest import AttentionMask

ATTENTION_NAME = "acespec_attention"
# What models hand to an attention function that changes nothing here: the mask and positions say it already.
HARMLESS_ARGUMENTS = frozenset(
    {
        "cache_position",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "position_ids",
        "sliding_window",
        "use_cache",
    }
)


class ModelFolderError(AcespecError):
    """A model folder cannot be loaded."""


@dataclass(frozen=True)
class DecoderShape:
    """What the runtime must know to hold a model's rows."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class StepCache(Cache):
    """A cache for one step: records each layer's new rows and hands them back as they are."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.new: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Record and return a layer's new rows ``[1, KVH, N, D]``."""
        assert layer_idx not in self.new, f"layer {layer_idx} was computed twice"
        self.new[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - transformers' signature
        return 0


@torch.library.custom_op("acespec::attention", mutates_args=())
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one step's tokens, over these rows alone: `[1, H, N, D]` from `[1, H or KVH, N, D]`.

    ``mask`` is additive, ``[1, 1, N, N]``. An exported graph puts the past before the step's rows, and
    ``mask`` has its columns.
    """
    groups = query.shape[1] // key.shape[1]
    keys, values = (rows.repeat_interleave(groups, dim=1) for rows in (key, value))
    scores = (query * scale) @ keys.transpose(2, 3) + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


@attention.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    del key, value, mask, scale
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def step_attention(
    module: nn.Module,  # noqa: ARG001 - transformers' signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a step; registered with transformers under `ATTENTION_NAME`.

    Returns ``[1, N, H, D]``. Raises ``NotImplementedError`` for an argument that would change the result.
    """
    unknown = [name for name, given in kwargs.items() if given is not None and name not in HARMLESS_ARGUMENTS]
    if unknown or dropout:
        raise NotImplementedError(f"its attention needs {', '.join(sorted(unknown)) or 'dropout'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attention(query, key, value, attention_mask, scale).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, step_attention)


class ExportableDecoder(nn.Module):
    """A decoder as a pure function of one step.

    | argument       | shape                        | dtype                      |
    |----------------|------------------------------|----------------------------|
    | `input_ids`    | `[1, N]`                     | int64                      |
    | `position_ids` | `[1, N]`                     | int64                      |
    | `logit_rows`   | `[M]`, tokens of the step    | int64                      |
    | `step_masks`   | each `[1, 1, N, N]`, additive | the weights'               |
    | -> logits      | `[1, M, vocab_size]`         | float32                    |
    | or with top_k  | `[1, M, K]` values and ids, `[1, M]` log-sum-exp | float32, int64, float32 |
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, context: int, top_k: int | None = None
    ) -> None:
        """Take ``model`` and switch its attention to this module's; logits are cut to ``vocab_size``.

        ``context`` is the number of positions it will be fed at most. Raises `UnsupportedModelError` when
        the model cannot do that, or its code does not keep to the seams used here.
        """
        super().__init__()
        refuse_by_config(model, context)
        self.model = model
        self.vocab_size = vocab_size
        self.top_k = None if top_k is None else min(top_k, vocab_size)
        self.masks: tuple[AttentionMask, ...] = attention_masks(model.config.get_text_config())
        self._logit_rows = torch.zeros(1, dtype=torch.int64)
        self.shape = self._probe()

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, the rows and the masks."""
        return self.model.dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_rows: torch.Tensor,
        step_masks: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        logits = self._run(input_ids, position_ids, logit_rows, step_masks, StepCache())
        if self.top_k is None:
            return (logits,)
        values, ids = torch.topk(logits, self.top_k, dim=-1)
        return values, ids, torch.logsumexp(logits, dim=-1)

    def _run(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_rows: torch.Tensor,
        step_masks: list[torch.Tensor],
        cache: StepCache,
    ) -> torch.Tensor:
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        chosen = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].index_select(1, logit_rows),))
        try:
            output = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=self._masks_by_kind(step_masks),
                cache=cache,
                use_cache=True,
            )
        finally:
            chosen.remove()
        logits: torch.Tensor = output.logits
        cut = logits if logits.shape[-1] == self.vocab_size else logits[..., : self.vocab_size]
        return cut.float()

    def _masks_by_kind(self, step_masks: list[torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """One mask, or by kind of layer where the model mixes kinds."""
        if len(self.masks) == 1:
            return step_masks[0]
        kinds = (mask.name.removeprefix("mask_") + "_attention" for mask in self.masks)
        return dict(zip(kinds, step_masks, strict=True))

    @torch.no_grad()
    def _probe(self) -> DecoderShape:
        """Run two tokens through the model and read its shape off the rows it made."""
        architecture = type(self.model).__name__
        cache = StepCache()
        tokens, positions = torch.zeros(1, 2, dtype=torch.int64), torch.arange(2)[None]
        masks = [torch.zeros(1, 1, 2, 2, dtype=self.dtype) for _ in self.masks]
        try:
            self.model.set_attn_implementation(ATTENTION_NAME)
            logits = self._run(tokens, positions, torch.arange(2), masks, cache)
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
