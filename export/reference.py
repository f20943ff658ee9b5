"""PyTorch's logits for a bundle that was made before: what ``acespec validate`` compares with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from acespec.export.check import torch_logits
from acespec.export.evaluate import bundle_template
from acespec.export.graph import use_matrix_products
from acespec.export.integer_products import rounded_activations
from acespec.export.round_weights import round_weights
from acespec.export.smooth import calibration_tokens
from acespec.export.write import PROBE_TOKENS
from acespec.models.exportable import ExportableDecoder, load_decoder
from acespec.models.fingerprint import check_source
from acespec.models.manifest import Bundle
from acespec.models.probe import Probe, branching_probe
from acespec.models.vocabulary import load_tokenizer


def reference_logits(model_folder: Path, bundle: Bundle) -> tuple[Probe, NDArray[np.float32]]:
    """A probe that branches, and PyTorch's logits ``[n, vocab_size]`` of it, on the bundle's rounded weights.

    Raises ``AcespecError`` when ``bundle`` was not exported from the model in ``model_folder``.
    """
    manifest = bundle.manifest
    check_source(bundle, model_folder)
    generator = np.random.default_rng(0)
    count = min(PROBE_TOKENS, manifest.max_context)
    probe = branching_probe(generator.integers(0, manifest.vocab_size, count))
    model = load_decoder(model_folder)
    quantization = manifest.quantization
    if quantization is None:
        return probe, torch_logits(model, probe, manifest.vocab_size)
    decoder = ExportableDecoder(model, manifest.vocab_size, manifest.max_context)
    use_matrix_products(decoder)
    calibration = calibration_tokens(load_tokenizer(bundle.tokenizer_path), bundle_template(bundle))
    matrices = round_weights(decoder, quantization, calibration, manifest.graphs[0].name)
    with rounded_activations(decoder, {} if quantization.activation_bits is None else matrices):
        return probe, torch_logits(model, probe, manifest.vocab_size)
