"""``acespec export`` as it is typed: what it shows, the report on prompts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from acespec.errors import AcespecError
from acespec.export import bundle as bundle_module
from acespec.export import write as write_module
from acespec.export.commands import export
from acespec.models.manifest import load_bundle
from model_folder import tiny_tokenizer
from tiny_target import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def prompts_file(folder: Path, count: int) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {n}?"}) + "\n" for n in range(count)))
    return file


def test_a_bundle_is_exported_and_compared_on_prompts(model: Path, tmp_path: Path) -> None:
    words = ["--precision", "int4", "--graph", "portable", "--logits", "topk:24", "--context", "64"]
    words += ["--buckets", "1,4", "--eval", str(prompts_file(tmp_path, 3)), "--eval-prompts", "2"]
    run = CliRunner().invoke(export, [str(model), "-o", str(tmp_path / "bundle"), *words])
    assert run.exit_code == 0, run.output
    assert "comparing it with the unquantised model on 2 prompts" in run.output
    assert "acceptance" in run.output
    assert "int4" in run.output
    assert " ms" in run.output
    assert "Loading weights" not in run.output
    manifest = load_bundle(tmp_path / "bundle").manifest
    assert manifest.max_context == 64
    assert manifest.graphs[0].top_k == 24
    assert manifest.graphs[0].buckets == (1, 4)


def test_prompts_are_read_before_anything_is_exported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "write_graph", pytest.fail)
    words = [str(model), "-o", str(tmp_path / "bundle"), "--eval", str(tmp_path / "none.jsonl")]
    with pytest.raises(AcespecError, match=r"none\.jsonl cannot be read"):
        export.main(words, standalone_mode=False)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_half_done(
    number: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        (partial,) = tmp_path.iterdir()
        (partial / "portable.onnx").write_bytes(b"half a gra")
        os.kill(os.getpid(), number)

    monkeypatch.setattr(write_module, "trace_graph", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as end:
        export.main([str(model), "-o", str(tmp_path / "bundle"), "--buckets", "1"], standalone_mode=True)
    assert isinstance(end.value, SystemExit)
    assert end.value.code == (128 + signal.SIGTERM if number == signal.SIGTERM else 1)
    assert not any(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is before
