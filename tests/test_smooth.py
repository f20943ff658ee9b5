"""Channels scaled where they are made and where they are read: nothing changes but what rounding costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
)

from acespec.export.channel_folds import ChannelFold, find_folds, own_attention
from acespec.export.graph import MatrixProduct, use_matrix_products
from acespec.export.quantize import quantize_decoder
from acespec.export.smooth import CALIBRATION_TEXT, calibration_tokens, round_rows, smooth_decoder
from acespec.models.chat import ChatTemplate
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import Quantization
from model_folder import CHAT_TEMPLATE, tiny_tokenizer
from tiny_target import MAX_CONTEXT, SHAPE, tiny_model

VOCAB = 257
TOKENS = torch.arange(40) * 11 % VOCAB
INTEGERS = Quantization(bits=8, block=None, symmetric=True, head_bits=8, activation_bits=8)


def phi3() -> PreTrainedModel:
    """Queries, keys and values in one product, gate and other factor in another."""
    torch.manual_seed(7)
    return Phi3ForCausalLM(Phi3Config(**SHAPE, pad_token_id=0)).eval()


def gemma() -> PreTrainedModel:
    """Normalisations multiply by one more than their weight."""
    torch.manual_seed(7)
    model = GemmaForCausalLM(GemmaConfig(**SHAPE, head_dim=8, pad_token_id=0)).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight, std=0.3)
    return model


def olmo2() -> PreTrainedModel:
    """Normalisations follow what they would precede: queries, keys, values and gates read the sum itself."""
    torch.manual_seed(7)
    return Olmo2ForCausalLM(Olmo2Config(**SHAPE, pad_token_id=0)).eval()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": tiny_model,
    "qwen3": lambda: tiny_model("qwen3"),
    "phi3": phi3,
    "gemma": gemma,
    "olmo2": olmo2,
}


def wrapped(model: PreTrainedModel) -> ExportableDecoder:
    decoder = ExportableDecoder(model, VOCAB, MAX_CONTEXT)
    use_matrix_products(decoder)
    return decoder


@torch.no_grad()
def logits_of(decoder: ExportableDecoder) -> torch.Tensor:
    with own_attention(decoder) as run:
        return run(TOKENS)


def readers(decoder: ExportableDecoder, folds: list[ChannelFold]) -> list[tuple[str, set[str]]]:
    """Last names of producer and consumers in layer 0, and of the head."""
    names = {module: name for name, module in decoder.named_modules()}
    found = [(names[fold.producer], {names[consumer] for consumer in fold.consumers}) for fold in folds]
    return [
        (producer.split(".")[-1], {consumer.split(".")[-1] for consumer in consumers})
        for producer, consumers in found
        if "layers.1" not in producer
    ]


EXPECTED = {
    "phi3": [
        ("input_layernorm", {"qkv_proj"}),
        ("qkv_proj", {"o_proj"}),
        ("post_attention_layernorm", {"gate_up_proj"}),
        ("gate_up_proj", {"down_proj"}),
        ("norm", {"lm_head"}),
    ],
    "olmo2": [("v_proj", {"o_proj"}), ("up_proj", {"down_proj"}), ("norm", {"lm_head"})],
}
EXPECTED["llama"] = EXPECTED["qwen3"] = EXPECTED["gemma"] = [
    ("input_layernorm", {"q_proj", "k_proj", "v_proj"}),
    ("v_proj", {"o_proj"}),
    ("post_attention_layernorm", {"gate_proj", "up_proj"}),
    ("up_proj", {"down_proj"}),
    ("norm", {"lm_head"}),
]


@pytest.mark.parametrize("name", MODELS)
def test_every_product_s_channels_are_traced_to_where_they_are_made(name: str) -> None:
    decoder = wrapped(MODELS[name]())
    before = {key: weight.clone() for key, weight in decoder.named_parameters()}
    folds = find_folds(decoder, TOKENS[:4])
    assert readers(decoder, folds) == EXPECTED[name]
    for key, weight in decoder.named_parameters():
        assert torch.equal(weight, before[key]), key


def test_a_guess_that_would_change_something_gives_way_to_the_next() -> None:
    decoder = wrapped(tiny_model())
    for layer in decoder.model.model.layers:
        for part, wrong in ((layer.mlp, "gate_proj"), (layer.self_attn, "q_proj")):
            moved = getattr(part, wrong)
            delattr(part, wrong)
            setattr(part, wrong, moved)  # now the last of its siblings, which is tried first
    assert readers(decoder, find_folds(decoder, TOKENS[:4])) == EXPECTED["llama"]


@pytest.mark.parametrize("name", MODELS)
def test_a_smoothed_decoder_computes_the_same_in_floats(name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if key.endswith("layernorm.weight"):
                weight[[3, 11, 19]] *= 40
    decoder = wrapped(model)
    before, weights = logits_of(decoder), {key: weight.clone() for key, weight in decoder.named_parameters()}
    smooth_decoder(decoder, TOKENS, INTEGERS)
    assert any(not torch.equal(weight, weights[key]) for key, weight in decoder.named_parameters())
    torch.testing.assert_close(logits_of(decoder), before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))


def plant_outliers(model: PreTrainedModel) -> PreTrainedModel:
    """Make three channels of every normalisation forty times larger, and what reads them smaller."""
    with torch.no_grad():
        for layer in model.model.layers:
            attention, feed_forward = layer.self_attn, layer.mlp
            for norm, products in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (feed_forward.gate_proj, feed_forward.up_proj)),
            ):
                norm.weight[[3, 11, 19]] *= 40
                for product in products:
                    product.weight[:, [3, 11, 19]] /= 40
    return model


def error_in_integers(smoothed: bool) -> float:
    """How far the logits are off once weights and activations are rounded."""
    decoder = wrapped(plant_outliers(tiny_model()))
    exact = logits_of(decoder)
    if smoothed:
        smooth_decoder(decoder, TOKENS, INTEGERS)
    quantize_decoder(decoder, INTEGERS)
    for module in decoder.modules():
        if isinstance(module, MatrixProduct):
            module.register_forward_pre_hook(lambda _, inputs: (round_rows(inputs[0]),))
    return float((logits_of(decoder) - exact).abs().mean())


def test_outliers_cost_far_less_once_smoothed() -> None:
    assert error_in_integers(smoothed=True) < 0.3 * error_in_integers(smoothed=False)


def test_what_stays_in_floats_is_not_smoothed() -> None:
    decoder = wrapped(tiny_model())
    before = {key: weight.clone() for key, weight in decoder.named_parameters()}
    smooth_decoder(decoder, TOKENS, Quantization(bits=4, block=32, symmetric=True, head_bits=None))
    after = dict(decoder.named_parameters())
    assert torch.equal(after["model.lm_head.weight"], before["model.lm_head.weight"])
    down = "model.model.layers.0.mlp.down_proj.weight"  # 48 inputs make no blocks of 32
    assert torch.equal(after[down], before[down])


def test_calibration_is_a_message_where_the_model_has_a_template() -> None:
    tokenizer = tiny_tokenizer()
    plain = calibration_tokens(tokenizer, None)
    assert tokenizer.decode(plain) == CALIBRATION_TEXT
    chat = calibration_tokens(tokenizer, ChatTemplate(CHAT_TEMPLATE))
    assert tokenizer.decode(chat).startswith("<user>The lighthouse")


def test_a_row_is_rounded_by_its_own_scale() -> None:
    rows = torch.tensor([[127.0, -3.4, 0.5, 1.5], [1.27, 0.004, -0.016, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [[127.0, -3.0, 0.0, 2.0], [1.27, 0.0, -0.02, 0.0], [0.0, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(round_rows(rows), torch.tensor(expected))
