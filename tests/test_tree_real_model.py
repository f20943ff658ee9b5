"""SmolLM2-135M-Instruct over trees of drafted tokens, against chains of the same engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.models import load_tokenizer, resolve_model
from token_trees import path_to, random_parents

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

TEXT = (
    "A lighthouse keeper counts the ships that pass at night. She writes down their lights, their course "
    "and the hour, and in the morning she reads the list to the harbour master over the telephone."
)
NODES = 48


def test_a_branch_has_the_logits_of_a_chain_and_is_kept() -> None:
    """At float32 the two differ by rounding only; a step after ``keep`` equals one after a fresh prefill."""
    threads = torch.get_num_threads()
    folder = resolve_model("smollm2-135m")
    engine = TransformersEngine.load(folder, threads=1)
    text = np.array(load_tokenizer(folder / "tokenizer.json").encode(TEXT).ids, dtype=np.int64)
    random = np.random.default_rng(1)
    parents = random_parents(random, NODES)
    parents[0] = -1
    tokens = random.integers(0, engine.info.vocab_size, NODES)
    tree, chain = engine.open(len(text) + NODES + 1), engine.open(len(text) + NODES + 1)
    engine.step([Feed(tree, text, 0)])
    engine.step([Feed(chain, text, 0)])
    (found,) = engine.step([Feed(tree, tokens, NODES, np.array(parents))])
    for node in range(0, NODES, 5):
        (rows,) = engine.step([Feed(chain, tokens[path_to(parents, node)], 1)])
        np.testing.assert_allclose(found[node], rows[0], atol=1e-3, rtol=0)
        engine.keep(chain, len(text))

    path = path_to(parents, NODES - 1)
    engine.keep(tree, len(text), [len(text) + node for node in path])
    engine.step([Feed(chain, tokens[path], 0)])
    after, expected = engine.step([Feed(tree, tokens[:1], 1), Feed(chain, tokens[:1], 1)])
    np.testing.assert_allclose(after[0], expected[0], atol=1e-3, rtol=0)
    torch.set_num_threads(threads)
