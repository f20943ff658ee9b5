"""How a draft's distributions are compared with the unquantised model's, and how the result is shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console
from transformers import PreTrainedModel

from acespec.errors import AcespecError
from acespec.export.evaluate import (
    Agreement,
    EvaluationRow,
    NextTokenLogits,
    continue_greedily,
    encode_prompts,
    evaluate_bundle,
    measure_agreement,
    read_prompts,
    report_table,
)
from acespec.models.chat import ChatTemplate
from acespec.models.fingerprint import model_fingerprint
from acespec.models.manifest import Bundle, BundleManifest
from acespec.speculation import DraftLogits
from model_folder import CHAT_TEMPLATE, tiny_tokenizer
from tiny_target import tiny_model, write_target_folder

VOCAB = 257
TEXTS = [np.arange(3, 20), np.array([7, 250, 1, 1, 90])]


@torch.no_grad()
def logits_of(model: PreTrainedModel, text: NDArray[np.int64]) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = model(input_ids=torch.from_numpy(text)[None]).logits[0, :, :VOCAB].numpy()
    return logits


def draft_of(model: PreTrainedModel) -> NextTokenLogits:
    return lambda text: DraftLogits(logits_of(model, text))


def damaged_model(noise: float = 0.05) -> PreTrainedModel:
    model = tiny_model()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator)
    return model


def slow_agreement(draft: PreTrainedModel, model: PreTrainedModel) -> Agreement:
    """Token by token, as the definitions say."""
    overlaps, same, divergences = [], [], []
    for text in TEXTS:
        for p_logits, q_logits in zip(logits_of(model, text), logits_of(draft, text), strict=True):
            p = np.exp(p_logits.astype(np.float64)) / np.exp(p_logits.astype(np.float64)).sum()
            q = np.exp(q_logits.astype(np.float64)) / np.exp(q_logits.astype(np.float64)).sum()
            overlaps.append(sum(min(a, b) for a, b in zip(p, q, strict=True)))
            same.append(max(range(VOCAB), key=p.__getitem__) == max(range(VOCAB), key=q.__getitem__))
            divergences.append(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True)))
    return Agreement(len(same), float(np.mean(overlaps)), float(np.mean(same)), float(np.mean(divergences)))


def test_it_equals_the_definitions_worked_out_token_by_token() -> None:
    draft, model = damaged_model(), tiny_model()
    measured = measure_agreement(draft_of(draft), model, TEXTS, VOCAB)
    expected = slow_agreement(draft, model)
    assert measured.num_positions == expected.num_positions == 22
    assert measured.expected_acceptance == pytest.approx(expected.expected_acceptance, abs=1e-6)
    assert measured.top1_agreement == expected.top1_agreement
    assert measured.mean_kl_nats == pytest.approx(expected.mean_kl_nats, abs=1e-6)


def test_a_model_agrees_with_itself_and_less_with_what_is_damaged_more() -> None:
    model = tiny_model()
    itself = measure_agreement(draft_of(model), model, TEXTS, VOCAB)
    assert itself == Agreement(22, pytest.approx(1), 1.0, pytest.approx(0))
    little, much = (
        measure_agreement(draft_of(damaged_model(noise)), model, TEXTS, VOCAB) for noise in (0.02, 0.1)
    )
    assert 1 > little.expected_acceptance > much.expected_acceptance > 0
    assert 0 < little.mean_kl_nats < much.mean_kl_nats


def largest(logits: NDArray[np.float32], count: int) -> DraftLogits:
    ids = np.argsort(-logits, axis=1)[:, :count]
    log_sum_exp = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)
    return DraftLogits(np.take_along_axis(logits, ids, 1), ids, log_sum_exp)


def test_the_largest_logits_of_all_are_as_good_as_the_whole_row() -> None:
    draft, model = damaged_model(), tiny_model()
    whole = measure_agreement(draft_of(draft), model, TEXTS, VOCAB)
    listed = measure_agreement(lambda text: largest(logits_of(draft, text), VOCAB), model, TEXTS, VOCAB)
    assert listed.expected_acceptance == pytest.approx(whole.expected_acceptance, abs=1e-6)
    assert listed.top1_agreement == whole.top1_agreement
    assert listed.mean_kl_nats == pytest.approx(whole.mean_kl_nats, abs=1e-4)


def test_a_draft_of_a_few_logits_draws_from_those_alone() -> None:
    model = tiny_model()
    measured = measure_agreement(lambda text: largest(logits_of(model, text), 5), model, TEXTS, VOCAB)
    kept = []
    for text in TEXTS:
        for row in logits_of(model, text):
            p = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
            kept.append(np.sort(p)[-5:].sum())  # of q = p / kept, min(p, q) is p
    assert measured.expected_acceptance == pytest.approx(np.mean(kept), abs=1e-6)
    assert measured.top1_agreement == 1
    assert measured.mean_kl_nats == pytest.approx(0, abs=1e-5)  # what it tells of the row is right


def test_texts_go_on_as_the_model_would_without_a_cache() -> None:
    model, text = tiny_model(), np.array([5, 6, 7])
    expected = text
    for _ in range(6):
        expected = np.append(expected, logits_of(model, expected)[-1].argmax())
    np.testing.assert_array_equal(continue_greedily(model, text, 6, VOCAB), expected)


def test_prompts_are_the_first_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 1, "prompt": "one"}\n\n{"prompt": "two"}\n{"prompt": "three"}\n')
    assert read_prompts(file, 2) == ["one", "two"]
    assert read_prompts(file, 9) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
        ('{"prompt": "x"}\n{"text": "y"}\n', "line 2"),
        ('{"prompt": 3}\n', "line 1"),
        ('{"prompt": "\\ud800"}\n', "line 1"),
        ('"prompt"\n', "line 1"),
        ("{prompt\n", "line 1"),
    ],
)
def test_a_file_of_something_else_is_refused_by_its_line(
    tmp_path: Path, content: str, complaint: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(AcespecError, match=complaint):
        read_prompts(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match=r"nowhere\.jsonl cannot be read \(No such file or directory\)"):
        read_prompts(tmp_path / "nowhere.jsonl")


def test_prompts_are_messages_where_the_model_has_a_template() -> None:
    tokenizer = tiny_tokenizer()
    plain, chat = (
        encode_prompts(["hello", ""], tokenizer, template, max_tokens=8)
        for template in (None, ChatTemplate(CHAT_TEMPLATE))
    )
    assert [tokenizer.decode(text.tolist()) for text in plain] == ["hello"]  # an empty prompt has no position
    assert [tokenizer.decode(text.tolist()) for text in chat] == ["<user>he", "<user>"]


def bundle_of(model_folder: Path, folder: Path, **changes: object) -> Bundle:
    """A bundle without a graph to speak of: its manifest, tokenizer and template are what is read."""
    folder.mkdir()
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "template").write_text(CHAT_TEMPLATE)
    (folder / "graph").write_bytes(bytes(1000))
    facts = {
        "model_name": "tiny",
        "source_fingerprint": model_fingerprint(model_folder),
        "vocabulary_hash": "0" * 64,
        "vocab_size": VOCAB,
        "end_token_ids": (256,),
        "bos_token": None,
        "eos_token": None,
        "tokenizer_file": "tokenizer.json",
        "chat_template_file": "template",
        "num_layers": 2,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_context": 24,
        "precision": "fp32",
        "graphs": [
            {
                "name": "portable",
                "opset": 21,
                "bucket_files": {1: "graph"},
                "masks": [{"name": "mask"}],
                "inputs": (),
                "outputs": (),
            }
        ],
        "file_sha256": dict.fromkeys(("tokenizer.json", "template", "graph"), "0" * 64),
    }
    return Bundle(folder, BundleManifest.model_validate(facts | changes))


def test_a_bundle_is_compared_on_its_prompts_and_what_follows(tmp_path: Path) -> None:
    source = write_target_folder(tmp_path / "model")
    bundle = bundle_of(source, tmp_path / "bundle")
    seen = []

    def draft(text: NDArray[np.int64]) -> DraftLogits:
        seen.append(text)
        return DraftLogits(logits_of(tiny_model(), text))

    row = evaluate_bundle(bundle, source, ["hi", "a prompt longer than the context"], draft, step_ms=2.0)
    # Of a context of 24 the model's own tokens take 12: "<user>hi" has 8, the other is cut to 12.
    assert [len(text) for text in seen] == [8 + 12, 12 + 12]
    assert row == EvaluationRow(
        "fp32", sum(file.stat().st_size for file in bundle.folder.iterdir()), 2.0, row.agreement
    )
    assert row.agreement.num_positions == 44
    assert row.agreement.expected_acceptance == pytest.approx(1)


def test_a_bundle_of_another_model_is_refused(tmp_path: Path) -> None:
    source = write_target_folder(tmp_path / "model")
    bundle = bundle_of(source, tmp_path / "bundle", source_fingerprint="another")
    with pytest.raises(AcespecError, match="was not exported from"):
        evaluate_bundle(bundle, source, ["hi"], draft_of(tiny_model()))


ROWS = [
    EvaluationRow("fp32", 538_000_000, 21.04, Agreement(100, 1.0, 1.0, 0.0)),
    EvaluationRow("int8", 164_400_000, None, Agreement(100, 0.98765, 0.991, 0.0042)),
]


def test_the_report_has_a_line_a_precision() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(report_table(ROWS))
    lines = [re.split(r"[│┃]", line)[1:-1] for line in capture.get().splitlines() if line[0] in "│┃"]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["precision", "size", "step", "acceptance", "same top token", "KL"],
        ["fp32", "538 MB", "21.0 ms", "1.000", "100.0%", "0.0000"],
        ["int8", "164 MB", "-", "0.988", "99.1%", "0.0042"],
    ]
    assert "100 positions, temperature 1" in capture.get()
