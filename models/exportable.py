"""Any Hugging Face decoder as a function from tokens to logits whose attention is left open, ready to export.

The model's own code runs unchanged. Two of transformers' public seams make it exportable: a cache object that
keeps nothing, and an attention function that is one operator, `acespec::attention`. What comes before a step
is not in here at all: each graph form gives the operator its past in its own way (``export``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache

from acespec.errors import AcespecError
from acespec.models.architecture import UnsupportedModelError, hold_rotary_frequencies, refuse_by_config
from acespec.models.layer_masks import MaskError, masks_by_kind, read_layer_masks
from acespec.models.manifest import MASKED, AttentionMask, Precision
from acespec.models.probe import Probe, branching_probe
from acespec.models.step_attention import ATTENTION_NAME
from acespec.models.tolerances import TOLERANCES

PROBE_TOKENS = 8
PRECISION_OF_DTYPE: dict[torch.dtype, Precision] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


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


def additive_masks(probe: Probe, masks: tuple[AttentionMask, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """What a step over ``probe`` without a past adds to its scores: each ``[1, 1, n, n]``."""
    return [
        torch.where(torch.from_numpy(probe.seen(mask.window)), 0.0, MASKED)[None, None].to(dtype)
        for mask in masks
    ]


@torch.no_grad()
def plain_logits(model: PreTrainedModel, probe: Probe, vocab_size: int) -> NDArray[np.float32]:
    """Logits ``[n, vocab_size]`` of the model as it is, which reads each path of ``probe`` as a text.

    It makes its own masks and positions, whatever they are: this is the reference for ours.
    """
    logits = np.empty((probe.count, vocab_size), np.float32)
    for path in probe.paths():
        text = torch.from_numpy(probe.tokens[path])[None]
        logits[path] = model(input_ids=text, use_cache=False).logits[0, :, :vocab_size].float().numpy()
    return logits


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
        architecture = type(model).__name__
        refuse_by_config(model, context)
        self.model = model
        self.vocab_size = vocab_size
        self.context = context
        self.top_k = None if top_k is None else min(top_k, vocab_size)
        with _refused_by_name(architecture):
            self.masks: tuple[AttentionMask, ...] = read_layer_masks(model, context)
            hold_rotary_frequencies(model)
            model.set_attn_implementation(ATTENTION_NAME)
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
                attention_mask=masks_by_kind(self.masks, step_masks),
                cache=cache,
                use_cache=True,
            )
        finally:
            chosen.remove()
        logits: torch.Tensor = output.logits
        cut = logits if logits.shape[-1] == self.vocab_size else logits[..., : self.vocab_size]
        return cut.float()

    @torch.no_grad()
    def _probe(self) -> DecoderShape:
        """Run a small tree, compare it with plain runs of the model, and read its shape off the rows it made.

        Raises `UnsupportedModelError`.
        """
        model = self.model
        architecture = type(model).__name__
        tokens = (np.arange(PROBE_TOKENS) * 7 + 3) % self.vocab_size
        probe = branching_probe(tokens, branch_length=2)
        cache, given = StepCache(), additive_masks(probe, self.masks, self.dtype)
        logits = self._run(
            torch.from_numpy(probe.tokens)[None],
            torch.from_numpy(probe.positions)[None],
            torch.arange(probe.count),
            given,
            cache,
        )
        if logits.shape[-1] != self.vocab_size:
            raise UnsupportedModelError(
                architecture, f"its tokenizer has {self.vocab_size} tokens, its head only {logits.shape[-1]}"
            )
        shape = _shape_of(cache, architecture)
        model.set_attn_implementation("eager")
        expected = plain_logits(model, probe, self.vocab_size)
        model.set_attn_implementation(ATTENTION_NAME)
        difference = float(np.abs(logits[0].numpy() - expected).max())
        if not difference <= TOLERANCES[PRECISION_OF_DTYPE[self.dtype]].allowed(expected):
            raise UnsupportedModelError(
                architecture,
                f"given masks and positions its logits are others ({difference:.1e} away): something else "
                "tells it where tokens stand",
            )
        return shape


def _shape_of(cache: StepCache, architecture: str) -> DecoderShape:
    """Read off the rows a step made. Raises `UnsupportedModelError` when layers differ."""
    shapes = {(*keys.shape, *values.shape) for keys, values in cache.new.values()}
    num_layers = len(cache.new)
    if sorted(cache.new) != list(range(num_layers)) or num_layers == 0:
        raise UnsupportedModelError(architecture, "not every layer keeps keys and values")
    if len(shapes) != 1:
        raise UnsupportedModelError(architecture, "its layers' keys and values differ in shape")
    _, num_kv_heads, count, head_dim, *value_shape = shapes.pop()
    if value_shape != [1, num_kv_heads, count, head_dim]:
        raise UnsupportedModelError(architecture, "its keys and values differ in shape")
    return DecoderShape(num_layers, num_kv_heads, head_dim)


@contextlib.contextmanager
def _refused_by_name(architecture: str) -> Iterator[None]:
    """Turn whatever a model's own code raises into an `UnsupportedModelError`."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except (MaskError, NotImplementedError) as error:
        raise UnsupportedModelError(architecture, " ".join(str(error).split())) from error
    except Exception as error:  # foreign code may raise anything
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnsupportedModelError(
            architecture, f"its code does not keep to transformers' interfaces for caches and masks ({cause})"
        ) from error


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars off the screen, where others show how far they are."""
    shown = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_decoder(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Load a causal language model from a Hugging Face folder as ``dtype``. Nothing is downloaded.

    Raises ``ModelFolderError`` if it cannot be loaded whole.
    """
    try:
        with _no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True
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
