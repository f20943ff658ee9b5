"""What a model's configuration says about exporting it: whether it can be, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from acespec.errors import AcespecError

RECURRENT_LAYERS = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
OTHER_MODEL = "choose a dense decoder such as Llama or Qwen3"


class UnsupportedModelError(AcespecError):
    """The model's architecture cannot be exported; the message names it and says why."""

    def __init__(self, architecture: str, reason: str, remedy: str = OTHER_MODEL) -> None:
        super().__init__(f"{architecture} cannot be exported: {reason}; {remedy}")


def refuse_by_config(model: PreTrainedModel, context: int) -> None:
    """Raise `UnsupportedModelError` for what a model's configuration already rules out at ``context``."""
    architecture = type(model).__name__
    config = model.config.get_text_config()
    reason = _unsupported_part(model, config)
    if reason is not None:
        raise UnsupportedModelError(architecture, reason)
    if any(rotary.get("rope_type") == "dynamic" for rotary in rotary_parameters(config)):
        raise UnsupportedModelError(
            architecture, "its rotary frequencies (dynamic) change with the length of the text"
        )
    limit = positions_without_switch(config)
    if limit is not None and context > limit:
        raise UnsupportedModelError(
            architecture,
            f"its rotary frequencies (longrope) are others beyond {limit} positions, and rows kept from "
            "before would have to change with them",
            f"export it with --context {limit} or less",
        )


def _unsupported_part(model: PreTrainedModel, config: PretrainedConfig) -> str | None:
    """What of the model no graph form here can hold; None: nothing that the configuration tells."""

    def has(name: str) -> bool:
        return bool(getattr(config, name, None))

    layer_types = set(getattr(config, "layer_types", None) or ())
    if has("is_encoder_decoder") or getattr(model.config, "is_encoder_decoder", False):
        return "it has an encoder"
    if getattr(model, "_is_stateful", False) or layer_types & RECURRENT_LAYERS:
        return "it keeps a recurrent state, which cannot be rolled back"
    if has("num_kv_shared_layers"):
        return "some of its layers attend to the keys of others"
    if has("kv_lora_rank"):
        return "it keeps compressed keys and values (multi-head latent attention)"
    if has("cross_attention_layers") or has("add_cross_attention"):
        return "it attends to more than its text (cross attention)"
    if any(has(name) for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")):
        return "it is a mixture of experts: each step would copy the weights of every token's experts"
    layer_types -= {"full_attention", "sliding_attention"}
    if layer_types:
        return f"it has {', '.join(sorted(layer_types))} layers"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is not one of transformers' attention interface"
    return None


def rotary_parameters(config: PretrainedConfig) -> Iterator[dict[str, Any]]:
    """The rotary embeddings of a model: one, or one a kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (nested for nested in parameters.values() if isinstance(nested, dict))


def positions_without_switch(config: PretrainedConfig) -> int | None:
    """Positions up to which LongRoPE keeps its frequencies; None: the model has another rotary embedding.

    Beyond them, rows kept from before would have to be computed again.
    """
    limits = [
        rotary["original_max_position_embeddings"]
        for rotary in rotary_parameters(config)
        if rotary.get("rope_type") == "longrope" and "original_max_position_embeddings" in rotary
    ]
    return min(limits, default=None)


def hold_rotary_frequencies(model: PreTrainedModel) -> None:
    """Keep the frequencies of LongRoPE at the short text's: a graph would switch them by what it is fed.

    Transformers' rotary modules look at ``rope_type`` in each forward to decide whether to choose again.
    """
    for module in model.modules():
        kind: Any = getattr(module, "rope_type", None)
        if kind == "longrope":
            module.inv_freq.copy_(module.original_inv_freq)  # type: ignore[operator, arg-type]
            module.rope_type = "default"  # type: ignore[assignment]
        elif isinstance(kind, dict) and "longrope" in kind.values():
            raise UnsupportedModelError(
                type(model).__name__, "its rotary frequencies (longrope) differ between layers"
            )
