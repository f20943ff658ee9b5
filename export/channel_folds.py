"""Where a decoder's channels can be scaled for nothing: divided where they are made, multiplied where used.

A normalisation's weight, the products that make attention's values and those that make a gate's other factor
are linear in what a later matrix product reads. Which modules those are is guessed from the model's structure
and proven by trying, so no architecture is named here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from acespec.export.graph import MatrixProduct
from acespec.models.exportable import DecoderShape, ExportableDecoder

Divide = Callable[[torch.Tensor], object]
"""Divides what a module puts out by factors, in place in its weights."""


@dataclass(frozen=True)
class ChannelFold:
    """Matrix products that read the same channels, and how those channels are divided where they are made."""

    consumers: tuple[MatrixProduct, ...]
    factor_of_channel: torch.Tensor
    """Index of the factor of each input channel, ``[in]``: query heads that share values share factors."""
    producer: nn.Module
    divide: Divide

    @property
    def num_factors(self) -> int:
        return int(self.factor_of_channel.max()) + 1

    def multiply(self, factors: torch.Tensor) -> None:
        """Multiply the rows by which the consumers read the channels."""
        for consumer in self.consumers:
            consumer.weight.mul_(factors[self.factor_of_channel][:, None])


@contextmanager
def own_attention(decoder: ExportableDecoder) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """The decoder as a plain function from ``[n]`` tokens to ``[n, vocabulary]`` logits."""
    model = decoder.model
    exported = model.config._attn_implementation
    model.set_attn_implementation("eager")

    def run(tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits[0]
        return logits

    try:
        yield run
    finally:
        model.set_attn_implementation(exported)


@torch.no_grad()
def find_folds(decoder: ExportableDecoder, tokens: torch.Tensor) -> list[ChannelFold]:
    """Every fold proven on ``tokens`` ``[n]``, a handful, to change nothing. Weights stay as they are."""
    with own_attention(decoder) as run:
        candidates = _candidates(decoder, run, tokens)
        likeliest = [folds[0] for folds in candidates if folds]
        if _change_nothing(likeliest, run, tokens):
            return likeliest
        proven = (
            next((fold for fold in folds if _change_nothing([fold], run, tokens)), None)
            for folds in candidates
        )
        return [fold for fold in proven if fold is not None]


def _candidates(
    decoder: ExportableDecoder, run: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor
) -> list[list[ChannelFold]]:
    """For each group of products that read the same tensor, the folds that may hold, likeliest first."""
    made: dict[int, nn.Module] = {}
    read: dict[int, list[MatrixProduct]] = {}
    earlier: dict[MatrixProduct, list[nn.Module]] = {}
    kept = []  # so that no address is used twice

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        kept.append((inputs, output))
        if isinstance(module, MatrixProduct):
            read.setdefault(inputs[0].data_ptr(), []).append(module)
            earlier[module] = [other for other in siblings[module] if other in earlier]
        else:
            made[output.data_ptr()] = module

    siblings = {child: list(parent.children()) for parent in decoder.modules() for child in parent.children()}
    watched = [
        module
        for module in decoder.modules()
        if isinstance(module, MatrixProduct) or _is_normalisation(module)
    ]
    hooks = [module.register_forward_hook(note) for module in watched]
    try:
        run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        [_norm_fold(made[address], consumers)]
        if address in made
        else _product_folds(consumers, earlier[consumers[0]], decoder.shape)
        for address, consumers in read.items()
    ]


def _is_normalisation(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 1 and getattr(module, "bias", None) is None


def _norm_fold(norm: nn.Module, consumers: Sequence[MatrixProduct]) -> ChannelFold:
    """A normalisation multiplies by its weight, or by one more than it: by one where the weight is zero."""
    weight = norm.weight
    assert isinstance(weight, nn.Parameter)
    held = weight.clone()
    weight.zero_()
    offset = 1 if norm(torch.ones_like(weight)).any() else 0
    weight.copy_(held)

    def divide(factors: torch.Tensor) -> None:
        weight.add_(offset).div_(factors).sub_(offset)

    return ChannelFold(tuple(consumers), torch.arange(len(weight)), norm, divide)


def _product_folds(
    consumers: Sequence[MatrixProduct], earlier: Sequence[nn.Module], shape: DecoderShape
) -> list[ChannelFold]:
    """The last columns of an earlier sibling, where fused products have their values or ungated half.

    As many as are read; or those of each key/value head, which a whole group of query heads reads. The first
    is likelier where the sibling makes that many, or several times as many.
    """
    read = consumers[0].weight.shape[0]
    heads = torch.arange(shape.num_kv_heads * shape.head_dim).reshape(shape.num_kv_heads, 1, shape.head_dim)
    mappings = [torch.arange(read)]
    if read % heads.numel() == 0 and read > heads.numel():
        group = read // heads.numel()
        mappings.append(heads.expand(-1, group, -1).reshape(-1))
    return [
        _columns_fold(consumers, other, channels)
        for other in reversed(earlier)
        if isinstance(other, MatrixProduct)
        for channels in (mappings if other.weight.shape[1] % read == 0 else reversed(mappings))
        if int(channels.max()) < other.weight.shape[1]
    ]


def _columns_fold(
    consumers: Sequence[MatrixProduct], producer: MatrixProduct, channels: torch.Tensor
) -> ChannelFold:
    count = int(channels.max()) + 1

    def divide(factors: torch.Tensor) -> None:
        producer.weight[:, -count:].div_(factors)
        if producer.bias is not None:
            producer.bias[-count:].div_(factors)

    return ChannelFold(tuple(consumers), channels, producer, divide)


def _change_nothing(
    folds: Sequence[ChannelFold], run: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor
) -> bool:
    """Whether dividing the channels reaches each consumer, and multiplying there undoes it all."""
    # Powers of two, which round no product and are taken back exactly; what is one more is saved.
    factors = [torch.exp2(torch.arange(fold.num_factors) % 3 - 1.0) for fold in folds]
    producers = [weight for fold in folds for weight in fold.producer.parameters(recurse=False)]
    saved = [(weight, weight.clone()) for weight in producers if weight.dim() == 1]
    logits, reads = _watched(folds, run, tokens)
    for fold, factor in zip(folds, factors, strict=True):
        fold.divide(factor)
        fold.multiply(factor)
    other_logits, other_reads = _watched(folds, run, tokens)
    for fold, factor in zip(folds, factors, strict=True):
        fold.divide(1 / factor)
        fold.multiply(1 / factor)
    for weight, value in saved:
        weight.copy_(value)
    return _alike(logits, other_logits) and all(
        _alike(read, other * factor[fold.factor_of_channel])
        for fold, factor, read, other in zip(folds, factors, reads, other_reads, strict=True)
    )


def _watched(
    folds: Sequence[ChannelFold], run: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits, and what the consumers of each fold read."""
    seen: dict[nn.Module, torch.Tensor] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen[module] = inputs[0]

    hooks = [fold.consumers[0].register_forward_pre_hook(note) for fold in folds]
    try:
        logits = run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, [seen[fold.consumers[0]] for fold in folds]


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool((first - second).abs().max() <= 1e-4 * first.abs().max())
