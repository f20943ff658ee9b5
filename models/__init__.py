"""Where models come from, which pairs are known, and what identifies a model and its vocabulary.

A model is a plain Hugging Face folder (``config.json``, safetensors, ``tokenizer.json``), in the cache or
anywhere else. Everything re-exported here works without torch and transformers, on the device too; what
needs them (turning GGUF into such a folder, the exportable decoder) imports them when it is called.
"""

from __future__ import annotations

from acespec.models.cache import bundles_folder, cache_folder, models_folder
from acespec.models.catalog import MODELS, KnownModel
from acespec.models.chat import ChatTemplate, load_chat_template, render_chat
from acespec.models.fingerprint import model_fingerprint
from acespec.models.pairs import DEMO_PAIR, PAIRS, Pair, pair
from acespec.models.sources import resolve_model
from acespec.models.vocabulary import end_token_ids, load_tokenizer, vocabulary_hash, vocabulary_size

__all__ = [
    "DEMO_PAIR",
    "MODELS",
    "PAIRS",
    "ChatTemplate",
    "KnownModel",
    "Pair",
    "bundles_folder",
    "cache_folder",
    "end_token_ids",
    "load_chat_template",
    "load_tokenizer",
    "model_fingerprint",
    "models_folder",
    "pair",
    "render_chat",
    "resolve_model",
    "vocabulary_hash",
    "vocabulary_size",
]
