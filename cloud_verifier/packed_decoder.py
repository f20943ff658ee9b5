"""Any Hugging Face decoder as a function of packed steps over a pool of keys and values.

The model's own code runs unchanged. Two of transformers' public seams carry it: a cache object that writes a
layer's new rows to the pool and hands on, in place of keys and values, what reads them there; and an
attention function that takes that. Model code that looks into the keys between the two fails at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache

from acespec.cloud_verifier.kv_store import KvStore, LayerRows
from acespec.cloud_verifier.packed_step import PackedStep, Part
from acespec.cloud_verifier.ragged_attention import ScoreRule
from acespec.errors import AcespecError
from acespec.models.exportable import StepCache
from acespec.models.layer_masks import input_device, read_layer_windows
from acespec.models.step_attention import ARGUMENT_MEANINGS, HARMLESS_ARGUMENTS

ATTENTION_NAME = "acespec_pool"
CHECK_TOKENS = 6
EXACT_DIFFERENCE = 1e-3
"""Two correct float32 runs of one text differ by less than this share of their logits."""
ROUNDED_DIFFERENCE = 0.15
"""The same for 16-bit floats, where an expert of a mixture may be another one."""


class UnsupportedTargetError(AcespecError):
    """The model cannot be served exactly; the message names its architecture and says why."""

    def __init__(
        self,
        architecture: str,
        reason: str,
        remedy: str = "serve a decoder with full or sliding-window attention",
    ) -> None:
        super().__init__(f"{architecture} cannot be served: {reason}; {remedy}")


@dataclass(frozen=True)
class StoredRows:
    """What stands for a layer's keys and values on their way to attention."""

    keys: torch.Tensor  # [rows, KVH, D], the layer's pool
    values: torch.Tensor  # [rows, KVH, V]
    step: PackedStep
    windows: Sequence[int | None]
    """Positions each layer of the model looks back; None: all."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(f"it takes the {name} of keys and values after it has kept them")


class PoolCache(Cache):
    """Transformers' cache for one step: writes to the pool."""

    def __init__(self, store: KvStore, step: PackedStep, windows: Sequence[int | None]) -> None:
        super().__init__(layers=[])
        self._store = store
        self._step = step
        self._windows = windows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Write a layer's new rows ``[1, KVH, T, D]``; returns ``StoredRows`` for both."""
        keys, values = self._store.keys[layer_idx], self._store.values[layer_idx]
        self._step.write(keys, key_states[0].transpose(0, 1))
        self._step.write(values, value_states[0].transpose(0, 1))
        stored = StoredRows(keys, values, self._step, self._windows)
        return stored, stored


def pool_attention(
    module: Any,
    query: torch.Tensor,
    key: object,
    value: object,  # noqa: ARG001 - the same as key
    attention_mask: object,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a step over the pool; registered with transformers under ``ATTENTION_NAME``.

    ``query`` is ``[1, H, T, D]``; returns ``[1, T, H, V]``. Raises ``NotImplementedError`` for an argument
    that would change the result and is not honoured.
    """
    for name, given in {**kwargs, "dropout": dropout or None}.items():
        if given is not None and name not in HARMLESS_ARGUMENTS:
            raise NotImplementedError(f"it {ARGUMENT_MEANINGS.get(name, f'gives its attention a {name}')}")
    if not isinstance(key, StoredRows) or attention_mask is not None:
        raise NotImplementedError("it makes masks or keys of its own")
    rule = ScoreRule(query.shape[-1] ** -0.5 if scaling is None else float(scaling), softcap, s_aux)
    window = key.windows[module.layer_idx]
    attended = key.step.attend(query[0].transpose(0, 1), key.keys, key.values, window, rule)
    return attended[None], None


AttentionInterface.register(ATTENTION_NAME, pool_attention)


class PackedDecoder:
    """A decoder that is fed packed steps."""

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, max_context: int, padded: bool | None = None
    ) -> None:
        """Take ``model`` over, its device and dtype as they are: its attention is this module's from now on.

        Logits are cut to ``vocab_size``. ``padded`` says how steps are to be packed; None: over several
        sequences in one call, unless all layers are on a CPU, where a call costs little.

        Raises ``UnsupportedTargetError`` if it cannot be served exactly, which four short forwards tell: one
        shows how far each layer looks back, a plain one which rows each keeps, and two packed ones must come
        to the plain one's logits.
        """
        self._model: Any = model.eval()  # type: ignore[no-untyped-call]
        self._vocab_size = vocab_size
        architecture = type(model).__name__
        refuse_by_config(model)
        try:
            self._windows = read_layer_windows(model, max_context)
            self._head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            expected, self.layers = self._plain_run()
            on_cpu = all(layer.device.type == "cpu" for layer in self.layers.values())
            self.padded = not on_cpu if padded is None else padded
            model.set_attn_implementation(ATTENTION_NAME)
            difference = self._difference(expected)
        except Exception as error:  # foreign code may raise anything
            cause = " ".join(str(error).split())[:200] or type(error).__name__
            raise UnsupportedTargetError(architecture, cause) from error
        if not expected.isfinite().all():
            raise UnsupportedTargetError(
                architecture, f"at {model.dtype} its logits are no numbers", "try --dtype bf16 or float32"
            )
        if not difference <= self._allowed_difference():
            raise UnsupportedTargetError(
                architecture,
                f"given positions its logits are others ({difference:.1e} of them): something else tells it "
                "where tokens stand",
            )

    @torch.inference_mode()
    def run(
        self, store: KvStore, step: PackedStep, tokens: NDArray[np.int64], logit_rows: NDArray[np.int64]
    ) -> torch.Tensor:
        """Feed ``tokens`` ``[T]``, in ``step``'s order; float32 logits ``[len(logit_rows), vocab_size]``.

        The head is applied to ``logit_rows`` alone, tokens of the step. The logits are in the CPU's memory.
        """
        rows = torch.from_numpy(logit_rows)
        device = input_device(self._model)
        chosen = self._head.register_forward_pre_hook(
            lambda _, inputs: (inputs[0].index_select(1, rows.to(inputs[0].device)), *inputs[1:])
        )
        try:
            output = self._model(
                input_ids=torch.from_numpy(tokens)[None].to(device),
                position_ids=torch.from_numpy(step.positions)[None].to(device),
                cache=PoolCache(store, step, self._windows),
                use_cache=True,
            )
        finally:
            chosen.remove()
        logits: torch.Tensor = output.logits[0, :, : self._vocab_size]
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)  # what fails does so within the step, logits or none
        return logits.to(torch.float32).cpu()

    def _texts(self) -> NDArray[np.int64]:
        """Two texts to try the model on, ``[2, CHECK_TOKENS]``."""
        return (np.arange(2 * CHECK_TOKENS).reshape(2, -1) * 7 + 3) % self._vocab_size

    @torch.inference_mode()
    def _plain_run(self) -> tuple[torch.Tensor, Mapping[int, LayerRows]]:
        """The texts' logits ``[2, CHECK_TOKENS, vocab_size]`` as the model alone has them, and its rows."""
        self._model.set_attn_implementation("eager")
        cache = StepCache()
        texts = torch.from_numpy(self._texts()).to(input_device(self._model))
        logits = self._model(input_ids=texts, cache=cache, use_cache=True).logits
        layers = {
            number: LayerRows(_shape(keys), _shape(values), keys.dtype, keys.device)
            for number, (keys, values) in cache.new.items()
        }
        if not layers:
            raise ValueError("no layer of it keeps keys and values")
        return logits[..., : self._vocab_size].float().cpu(), layers

    def _difference(self, expected: torch.Tensor) -> float:
        """How far packed steps are from ``expected``, as a share of it: both texts, each in two parts."""
        store = KvStore(self.layers, num_pages=2)
        found = torch.empty_like(expected)
        held = [store[store.open(CHECK_TOKENS)] for _ in self._texts()]
        cuts = [(0, 0), (4, 3), (CHECK_TOKENS, CHECK_TOKENS)]
        for starts, ends in itertools.pairwise(cuts):
            parts = [
                Part(sequence.pages, start, end - start)
                for sequence, start, end in zip(held, starts, ends, strict=True)
            ]
            step = PackedStep(parts, padded=self.padded)
            spans = [(i, slice(starts[i], ends[i])) for i in step.order]
            tokens = np.concatenate([self._texts()[span] for span in spans])
            logits = self.run(store, step, tokens, np.arange(len(tokens)))
            counts = [parts[i].count for i in step.order]
            for span, rows in zip(spans, torch.split(logits, counts), strict=True):
                found[span] = rows
        return float((found - expected).norm() / expected.norm())

    def _allowed_difference(self) -> float:
        exact = all(layer.dtype.itemsize >= 4 for layer in self.layers.values())
        return EXACT_DIFFERENCE if exact else ROUNDED_DIFFERENCE


def _shape(rows: torch.Tensor) -> tuple[int, int]:
    """Heads and width of ``[B, KVH, T, D]``."""
    _, heads, _, width = rows.shape
    return heads, width


def refuse_by_config(model: PreTrainedModel) -> None:
    """Raise ``UnsupportedTargetError`` for what needs no forward to know."""
    architecture = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    unsupported = layer_types - {"full_attention", "sliding_attention"}
    if unsupported:
        raise UnsupportedTargetError(
            architecture, f"layers of type {', '.join(sorted(unsupported))} cannot be rolled back"
        )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedTargetError(architecture, "it keeps a recurrent state, which cannot be rolled back")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedTargetError(architecture, "it has an encoder")
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedTargetError(
            architecture, "it keeps compressed keys and values (multi-head latent attention)"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedTargetError(
            architecture, "its attention is not one of transformers' attention interface"
        )
