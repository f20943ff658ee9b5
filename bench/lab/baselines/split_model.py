"""A real split of a PyTorch decoder: two models that hold a part of its layers each.

Works for Hugging Face decoders whose base model has ``layers`` and ``norm`` and takes ``inputs_embeds``
(Llama, Qwen, Mistral and their like).
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from acespec.bench.lab.baselines.split import decode_hidden, encode_hidden


class EdgeHalf:
    """Embedding and the first layers; keeps their keys and values."""

    def __init__(self, model: PreTrainedModel, num_layers: int) -> None:
        """``model`` is left as it is."""
        self._layers = _part(model, 0, num_layers)
        self._layers.norm = torch.nn.Identity()
        self._cache = DynamicCache(config=self._layers.config)

    @torch.inference_mode()
    def forward(self, tokens: list[int]) -> bytes:
        """Feed ``tokens``; the encoded hidden states behind the last layer here."""
        output = self._layers(input_ids=torch.tensor([tokens]), cache=self._cache)
        return encode_hidden(output.last_hidden_state[0].float().numpy())


class CloudHalf:
    """The other layers, the norm and the head; keeps their keys and values."""

    def __init__(self, model: PreTrainedModel, num_layers: int) -> None:
        """``num_layers`` are on the other side."""
        self._layers = _part(model, num_layers, model.config.num_hidden_layers)
        self._head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._dtype = model.dtype
        self._hidden_size = model.config.hidden_size
        self._cache = DynamicCache(config=self._layers.config)

    @torch.inference_mode()
    def forward(self, data: bytes) -> NDArray[np.float32]:
        """Take hidden states as encoded; the logits ``[vocab_size]`` behind the last of them."""
        hidden = torch.from_numpy(decode_hidden(data, self._hidden_size).copy()).to(self._dtype)
        output = self._layers(inputs_embeds=hidden[None], cache=self._cache)
        logits: NDArray[np.float32] = self._head(output.last_hidden_state[0, -1]).float().numpy()
        return logits


def _part(model: PreTrainedModel, first: int, end: int) -> Any:
    """The base model with layers ``first`` to ``end`` alone, numbered from 0; weights are shared."""
    base: Any = model.base_model  # any decoder's: it has no type of its own
    part = copy.copy(base)  # modules are shared but for those replaced here
    part._modules = dict(base._modules)
    part.config = copy.deepcopy(base.config)
    part.config.num_hidden_layers = end - first
    kinds = getattr(base.config, "layer_types", None)
    if kinds is not None:
        part.config.layer_types = kinds[first:end]
    layers = [copy.deepcopy(layer) for layer in base.layers[first:end]]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
    part.layers = torch.nn.ModuleList(layers)
    return part
