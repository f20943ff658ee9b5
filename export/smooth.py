"""Outliers moved from activations into weights, so that one scale a row serves all of its channels.

A few channels of a decoder's hidden states are many times larger than the rest. Dividing channels where they
are made and multiplying them where they are read changes nothing in floats (`channel_folds`), but decides
what rounding does (SmoothQuant, Xiao et al., 2023; AWQ, Lin et al., 2024). The factors are powers of two, by
which float weights are multiplied exactly.
"""

from __future__ import annotations

import logging

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.utils.hooks import RemovableHandle

from acespec.export.channel_folds import ChannelFold, find_folds, own_attention
from acespec.export.evaluate import encode_prompts
from acespec.export.quantized_matrix import quantize_matrix
from acespec.models.chat import ChatTemplate
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import Quantization

logger = logging.getLogger(__name__)

# A channel's factor is size ** a / weight_peak ** b; without either, one.
EXPONENTS = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.5, 0.25), (0.75, 0.0), (0.75, 0.25), (0.75, 0.5))
PROVING_TOKENS = 4
MOST_CALIBRATION_TOKENS = 4096
MOST_ROWS, MOST_COLUMNS = 128, 512
"""Tokens and outputs of a product on which a choice is tried: every so many of more."""

CALIBRATION_TEXT = """The lighthouse stood on a rock two miles from the shore. Every evening, when the sun
went down, the keeper climbed one hundred and twelve steps, cleaned the glass and lit the lamp. In winter the
waves reached the windows of the kitchen, and for days no boat could land.

def moving_average(values: list[float], width: int) -> list[float]:
    \"\"\"Mean of each window of `width` values.\"\"\"
    if width < 1:
        raise ValueError("width must be positive")
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]

Question: A baker sells 24 loaves in the morning and half as many in the afternoon. Each costs $3.50. How much
does she earn in 5 days?
Answer: In a day she sells 24 + 12 = 36 loaves, which makes 36 * 3.50 = 126 dollars. In 5 days she earns 630.

Three ways to save water at home:
1. Take shorter showers.
2. Repair taps that drip.
3. Collect rain for the garden.
"""
"""What the choice is made on: prose, code, arithmetic and a list."""


def calibration_tokens(tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """Tokens of `CALIBRATION_TEXT`, as a message of a chat where there is a template.

    A text's first token and a chat's own have outliers.
    """
    (tokens,) = encode_prompts([CALIBRATION_TEXT], tokenizer, template, MOST_CALIBRATION_TOKENS)
    return [int(token) for token in tokens]


def round_rows(rows: torch.Tensor) -> torch.Tensor:
    """``rows`` ``[..., n]`` in eight bits, each with one scale: what integer activations stand for."""
    scales = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny) / 127
    return torch.round(rows / scales) * scales


@torch.no_grad()
def smooth_decoder(decoder: ExportableDecoder, tokens: torch.Tensor, quantization: Quantization) -> None:
    """Scale the decoder's channels so that ``quantization`` costs least on ``tokens`` ``[n]``.

    In floats the decoder, which must be of float32, computes the same as before. Call it before the weights
    are quantised, with `calibration_tokens`. Each group of products that reads the same channels takes the
    best of `EXPONENTS`, all in one forward.
    """
    folds = find_folds(decoder, tokens[:PROVING_TOKENS])
    head = decoder.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    hooks = []
    for fold in folds:
        bits = quantization.head_bits if head in fold.consumers else quantization.bits
        rows = fold.consumers[0].weight.shape[0]
        if bits is not None and rows % (quantization.block or rows) == 0:
            hooks += _choose_when_read(fold, bits, quantization)
    logger.info("smoothing %d groups of channels", len(hooks))
    # Once the head has its factors, nobody reads the logits: they are the largest tensor of all.
    hooks.append(head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -1:], *inputs[1:])))
    try:
        with own_attention(decoder) as run:
            run(tokens)
    finally:
        for hook in hooks:
            hook.remove()


def _choose_when_read(fold: ChannelFold, bits: int, quantization: Quantization) -> list[RemovableHandle]:
    """Hooks that choose and apply the factors when the first consumer reads, and divide what each reads then:
    what made it has run already."""
    chosen: list[torch.Tensor] = []

    def divide(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if not chosen:
            chosen.append(_best_factors(fold, inputs[0].flatten(0, -2), bits, quantization))
            fold.divide(chosen[0])
            fold.multiply(chosen[0])
        return (inputs[0] / chosen[0][fold.factor_of_channel], *inputs[1:])

    return [consumer.register_forward_pre_hook(divide) for consumer in fold.consumers]


def _best_factors(
    fold: ChannelFold, rows: torch.Tensor, bits: int, quantization: Quantization
) -> torch.Tensor:
    """The factors by which rounding changes the consumers' outputs least, relative to each row's size.

    Of equal ones the first: no factor at all wins where nothing helps. ``rows`` is ``[n, in]``.
    """
    weight = torch.cat([_thinned(consumer.weight.T, MOST_COLUMNS).T for consumer in fold.consumers], dim=1)
    # What is rounded with its row is scaled by the largest value, what only weighs an error by the usual one.
    rounds_rows = quantization.activation_bits is not None
    of_channels = rows.abs().amax(0) if rounds_rows else rows.square().mean(0).sqrt()
    sizes, weight_peaks = _of_factors(of_channels, fold), _of_factors(weight.abs().amax(1), fold)
    rows = _thinned(rows, MOST_ROWS)
    exact = rows @ weight
    lengths = exact.square().sum(1).clamp_min(torch.finfo(exact.dtype).tiny)
    best, least = torch.ones(fold.num_factors), float("inf")
    for size_exponent, weight_exponent in EXPONENTS:
        factors = _power_of_two(sizes**size_exponent / weight_peaks**weight_exponent)
        each = factors[fold.factor_of_channel]
        scaled = (weight * each[:, None]).numpy()
        rounded = quantize_matrix(scaled, bits, quantization.block, quantization.symmetric).dequantized()
        given = round_rows(rows / each) if rounds_rows else rows / each
        error = float(((given @ torch.from_numpy(rounded) - exact).square().sum(1) / lengths).mean())
        if error < least:
            best, least = factors, error
    return best


def _thinned(rows: torch.Tensor, most: int) -> torch.Tensor:
    return rows[:: -(-len(rows) // most)]


def _of_factors(of_channels: torch.Tensor, fold: ChannelFold) -> torch.Tensor:
    """The largest of the channels that share a factor, never zero."""
    largest = torch.zeros(fold.num_factors)
    largest.scatter_reduce_(0, fold.factor_of_channel, of_channels, "amax")
    return largest.clamp_min(float(largest.max()) * 1e-4 or 1.0)


def _power_of_two(factors: torch.Tensor) -> torch.Tensor:
    """The nearest powers of two, centred on one."""
    logarithms = factors.log2()
    return torch.exp2((logarithms - logarithms.mean()).round())
