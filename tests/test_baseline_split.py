"""Split inference: a real split of a PyTorch decoder, and the accounting that stands for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from acespec.bench.lab.baselines.split import Split, decode_hidden, encode_hidden
from acespec.bench.lab.baselines.split_model import CloudHalf, EdgeHalf
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.cloud_verifier.acceptance import verify_coupled, verify_residual
from acespec.edge_runtime import GenerationRequest
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode
from baseline_world import PROMPT, Table, TableModels, make_request, make_tables, make_world, run_one
from tiny_target import tiny_model

FAST_LINK = LinkConditions.symmetric(50.0, bytes_per_second=math.inf)
TEXT = [9, 200, 31, 7, 64, 128, 5, 90, 17, 3]


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral"])
def test_a_split_model_says_what_the_whole_one_says_of_rounded_hidden_states(architecture: str) -> None:
    """The reference: the whole model, made to round its hidden states to float16 behind the first layer."""
    model = tiny_model(architecture)
    edge, cloud = EdgeHalf(model, 1), CloudHalf(model, 1)
    found = [cloud.forward(edge.forward(TEXT[:6]))] + [
        cloud.forward(edge.forward([token])) for token in TEXT[6:]
    ]

    def rounding(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output.half().float()

    hook = model.base_model.layers[0].register_forward_hook(rounding)
    with torch.inference_mode():
        whole = model(torch.tensor([TEXT])).logits[0, 5:].numpy()
    hook.remove()
    np.testing.assert_allclose(np.stack(found), whole, atol=2e-3)
    with torch.inference_mode():
        exact = model(torch.tensor([TEXT])).logits[0, 5:].numpy()
    assert np.abs(exact - whole).max() > 0.0
    assert np.abs(np.stack(found) - exact).max() < 0.05


def test_the_real_split_sends_what_the_laboratory_counts() -> None:
    model = tiny_model()
    hidden_size = model.config.hidden_size
    data = EdgeHalf(model, 1).forward(TEXT)
    assert len(data) == len(TEXT) * hidden_size * 2 == len(encode_hidden(np.zeros((len(TEXT), hidden_size))))
    assert decode_hidden(data, hidden_size).shape == (len(TEXT), hidden_size)


@pytest.mark.parametrize("mode", AcceptanceMode)
def test_its_text_is_cloud_only_decodings(mode: AcceptanceMode) -> None:
    target, draft = make_tables()
    for seed in range(30):
        sampling = SamplingParams(temperature=0.9, top_p=0.95)
        request = replace(make_request(sampling, seed, max_new_tokens=9), mode=mode)
        world = run_one(Split(), lambda: make_world(TableModels(target, draft), request))  # noqa: B023

        assert world.log.tokens == cloud_only_text(target, request)


def cloud_only_text(target: Table, request: GenerationRequest) -> list[int]:
    """The verifier's own decisions, a token at a time."""
    text, position = list(request.prompt), len(request.prompt)
    sampling, seed, ends = request.sampling, request.seed, request.end_token_ids
    while len(text) < request.token_limit and (len(text) == position or text[-1] not in ends):
        rows = target[None, text[-2], text[-1]]
        if request.mode is AcceptanceMode.COUPLED:
            decision = verify_coupled(rows, (), sampling, None, seed, len(text), ends)
        else:
            decision = verify_residual(rows, (), (), sampling, None, seed, len(text), ends)
        assert decision.next_token is not None
        text.append(decision.next_token)
    return text[position:]


def test_every_token_costs_its_layers_on_both_sides_and_a_round_trip() -> None:
    pair = parse_profiles("orin-qwen3-0.6b/a100-70b")
    target, draft = make_tables()
    request = replace(make_request(SamplingParams(temperature=0.0), max_new_tokens=4), end_token_ids=())
    strategy = Split(edge_layers=8, layer_slowdown=5.0)
    world = run_one(strategy, lambda: make_world(TableModels(target, draft), request, conditions=FAST_LINK))
    step_ms = 146.0 / 80 * 8 * 5.0 + 146.0 * 72 / 80 + 50.0
    assert world.log.first_token_ms == pytest.approx(step_ms)
    assert world.log.last_token_ms == pytest.approx(4 * step_ms)
    assert world.log.forwards == 4
    up = world.link.up.traffic
    assert up.messages == 1 + 4
    hidden_bytes = (len(PROMPT) + 3) * pair.cloud.hidden_size * 2
    assert hidden_bytes < up.payload_bytes < hidden_bytes + 200  # and the prompt's tokens
    assert world.link.down.traffic.payload_bytes == 4


def test_the_cloud_must_have_a_layer() -> None:
    for edge_layers in (0, 80):
        with pytest.raises(ValueError, match="edge_layers must be from 1 to 79"):
            run_one(
                Split(edge_layers=edge_layers),
                lambda: make_world(TableModels(*make_tables()), make_request(SamplingParams())),
            )
