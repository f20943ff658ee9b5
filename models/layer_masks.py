"""How far back each layer of a model looks, read off the masks that the model itself makes.

A configuration does not say it reliably: `sliding_window` may be set and unused, `layer_types` absent or
different from what the layers do. But transformers' models describe each mask by a function of two positions,
and hand the mask to a layer's attention. Both are public seams (``AttentionMaskInterface``,
``AttentionInterface``), so one plain run records which function each layer is masked by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from acespec.models.manifest import AttentionMask

RECORDER_NAME = "acespec_recorder"
PROBE_TOKENS = 2
MaskFunction = Callable[..., Any]
"""Takes batch row, head, query and key position, numbers or tensors: whether the one sees the other."""
StepMasks = torch.Tensor | dict[str, torch.Tensor]


class MaskError(Exception):
    """A model's masks are not the kind that can be exported; the message says why, of "it"."""


@dataclass
class _Recording:
    """What a run showed: the masks there were, each with what describes it, and the one each layer got."""

    masks: list[tuple[object, Any]] = field(default_factory=list)
    layers: dict[int, Any] = field(default_factory=dict)
    """Layer -> what describes its mask."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """What layers told their attention kernel besides; None: nothing."""


_recordings: list[_Recording] = []
"""The run in progress: transformers finds both functions by name alone."""


class _MadeMask:
    """Stands for a mask on its way to the layers, the same object also where their devices differ."""


def _record_mask(mask_function: MaskFunction, **_: Any) -> _MadeMask:
    mask = _MadeMask()
    _recordings[-1].masks.append((mask, mask_function))
    return mask


def _record_layer(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,  # noqa: ARG001 - transformers' signature
    value: torch.Tensor,
    attention_mask: object,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Note who took which mask; the result only has the right shape."""
    recording = _recordings[-1]
    layer: Any = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or layer in recording.layers:
        raise MaskError("its layers do not say which they are")
    found = [described for mask, described in recording.masks if mask is attention_mask]
    if not found:
        raise MaskError("its layers change their mask, or make their own")
    recording.layers[layer] = found[0]
    recording.windows[layer] = sliding_window
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2), None


AttentionMaskInterface.register(RECORDER_NAME, _record_mask)
AttentionInterface.register(RECORDER_NAME, _record_layer)


def input_device(model: PreTrainedModel) -> torch.device:
    """Where ``model`` takes its inputs. One that accelerate spread over devices moves them itself."""
    return torch.device("cpu") if hasattr(model, "_hf_hook") else model.device


@torch.no_grad()
def _record(model: PreTrainedModel, recording: _Recording, attention_mask: StepMasks | None) -> _Recording:
    """Run two tokens and note what each layer is masked by."""
    _recordings.append(recording)
    try:
        tokens = torch.zeros(1, PROBE_TOKENS, dtype=torch.int64, device=input_device(model))
        model(input_ids=tokens, attention_mask=attention_mask, use_cache=False)
    finally:
        _recordings.pop()
    if sorted(recording.layers) != list(range(len(recording.layers))) or not recording.layers:
        raise MaskError("not every layer has attention")
    return recording


def read_layer_windows(model: PreTrainedModel, context: int) -> list[int | None]:
    """How many positions each of ``model``'s layers looks back, its own included; None: all of ``context``.

    Leaves another attention switched on. Raises `MaskError`, or whatever the model's own code does.
    """
    model.set_attn_implementation(RECORDER_NAME)
    recording = _record(model, _Recording(), None)
    windows = []
    for layer, function in sorted(recording.layers.items()):
        window = window_of(function, context)
        told = recording.windows[layer]
        if told is not None and min(told, context) != (window or context):
            raise MaskError(f"a mask of its looks {window or 'all'} positions back, its layer {told}")
        windows.append(window)
    return windows


def read_layer_masks(model: PreTrainedModel, context: int) -> tuple[AttentionMask, ...]:
    """The masks of ``model``'s layers over ``context`` positions: one, or ``mask_full`` and ``mask_sliding``.

    A window as long as the context is none. Leaves another attention switched on. Raises `MaskError`, or
    whatever the model's own code does.
    """
    windows = read_layer_windows(model, context)
    masks = _named(windows)
    # Given masks instead of making them, each layer must take the one of its own window.
    given = [torch.zeros(1, 1, PROBE_TOKENS, PROBE_TOKENS, dtype=model.dtype) for _ in masks]
    labelled: list[tuple[object, Any]] = [
        (tensor, mask.window) for tensor, mask in zip(given, masks, strict=True)
    ]
    taken = _record(model, _Recording(labelled), masks_by_kind(masks, given))
    if [window for _, window in sorted(taken.layers.items())] != windows:
        raise MaskError("its layers do not take the masks they are given")
    return masks


def masks_by_kind(masks: tuple[AttentionMask, ...], tensors: list[torch.Tensor]) -> StepMasks:
    """What a model takes as its ``attention_mask``: one tensor, or by kind of layer where it mixes kinds."""
    if len(masks) == 1:
        return tensors[0]
    kinds = (mask.name.removeprefix("mask_") + "_attention" for mask in masks)
    return dict(zip(kinds, tensors, strict=True))


def window_of(function: MaskFunction, context: int) -> int | None:
    """Positions a query sees under ``function``, its own included; None: all before it.

    Raises `MaskError` when that is not the same everywhere.
    """
    keys = torch.arange(context)

    def seen(position: int) -> torch.Tensor:
        return torch.as_tensor(function(0, 0, torch.tensor(position), keys)).expand(context)

    window = int(seen(context - 1).sum())
    for position in {0, 1, window - 1, window, window + 1, context // 3, context // 2, context - 1}:
        if 0 <= position < context:
            behind = position - keys
            if not torch.equal(seen(position), (behind >= 0) & (behind < window)):
                raise MaskError("its attention is neither causal nor a window of the last positions")
    return None if window == context else window


def _named(windows: list[int | None]) -> tuple[AttentionMask, ...]:
    kinds = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    if len(kinds) == 1:
        return (AttentionMask(name="mask", window=kinds[0]),)
    if len(kinds) > 2 or kinds[0] is not None:
        listed = " and ".join(str(kind) for kind in kinds if kind is not None)
        raise MaskError(f"its layers look back by windows of {listed} positions")
    return (AttentionMask(name="mask_full"), AttentionMask(name="mask_sliding", window=kinds[1]))
