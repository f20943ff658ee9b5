"""What a model's configuration says about exporting it: its attention masks, or why it cannot be."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from acespec.errors import AcespecError
from acespec.models.manifest import AttentionMask

LENGTH_DEPENDENT_ROTARY = frozenset({"dynamic", "longrope"})


class UnsupportedModelError(AcespecError):
    """The model's architecture cannot be exported; the message names it and says why."""

    def __init__(self, architecture: str, reason: str) -> None:
        super().__init__(
            f"{architecture} cannot be exported: {reason}; choose a dense decoder such as Llama or Qwen3"
        )


def attention_masks(config: PretrainedConfig) -> tuple[AttentionMask, ...]:
    """The masks a model's layers need: one, or one a kind where ``layer_types`` mixes kinds."""
    layer_types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if len(layer_types) > 1:
        return (AttentionMask(name="mask_full"), AttentionMask(name="mask_sliding", window=window))
    if layer_types == {"full_attention"}:
        window = None
    return (AttentionMask(name="mask", window=window),)


def refuse_by_config(model: PreTrainedModel, context: int) -> None:  # noqa: ARG001
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
    layer_types = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if layer_types:
        raise UnsupportedModelError(architecture, f"it has {', '.join(sorted(layer_types))} layers")
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") in LENGTH_DEPENDENT_ROTARY:
        raise UnsupportedModelError(
            architecture, f"its rotary frequencies ({rotary['rope_type']}) change with the length of the text"
        )
