"""Plans on disk: used only if key and hash fit, whole or not there."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from acespec.edge_runtime.plan_files import PlanFolder, engines_folder
from acespec.edge_runtime.plan_key import PlanKey, StepShape, architecture
from acespec.edge_runtime.trt_module import TensorRtError

KEY = PlanKey(
    runtime="tensorrt",
    version="10.3.0",
    compute_capability="8.7",
    graph="portable",
    graph_file="portable.onnx",
    graph_sha256="a" * 64,
    weights_sha256={"portable.onnx.data": "b" * 64},
    rows=2560,
    steps=(StepShape(width=1, logit_rows=1), StepShape(width=8, logit_rows=8)),
)
PLAN = bytes(range(256)) * 10

CHANGES = {
    "version": "10.16.0",
    "graph_sha256": "c" * 64,
    "weights_sha256": {"portable.onnx.data": "c" * 64},
    "rows": 1024,
    "steps": (StepShape(width=1, logit_rows=1),),
    "graph": "native",
}


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    assert folder.read(KEY) is None
    assert not folder.has(KEY)
    folder.write(KEY, memoryview(PLAN))
    assert folder.read(KEY) == PLAN
    assert folder.has(KEY)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "portable.tensorrt.sm87.json",
        "portable.tensorrt.sm87.plan",
    ]


@pytest.mark.parametrize("field", CHANGES)
def test_a_plan_of_another_key_is_not_used(
    tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(PLAN))
    assert folder.read(KEY.model_copy(update={field: CHANGES[field]})) is None
    assert not folder.has(KEY.model_copy(update={field: CHANGES[field]}))
    assert field in caplog.text


def test_plans_for_other_devices_and_runtimes_stand_beside_it(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    others = [
        KEY.model_copy(update={"compute_capability": "11.0"}),
        KEY.model_copy(update={"runtime": "tensorrt-rtx"}),
        KEY.model_copy(update={"graph_file": "portable.b8.onnx"}),
    ]
    for key in (KEY, *others):
        folder.write(key, memoryview(PLAN))
    assert all(folder.read(key) == PLAN for key in (KEY, *others))


@pytest.mark.parametrize(
    "damage", [lambda plan: plan[:-1], lambda plan: b"", lambda plan: plan[:9] + b"!" + plan[10:]]
)
def test_a_damaged_plan_is_not_used(tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(PLAN))
    assert callable(damage)
    folder.plan_path(KEY).write_bytes(damage(PLAN))
    assert folder.read(KEY) is None
    assert "sha256" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"format_version": 2}'])
def test_a_record_that_is_none_is_not_used(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(PLAN))
    (tmp_path / "portable.tensorrt.sm87.json").write_bytes(content)
    assert folder.read(KEY) is None
    assert "portable.tensorrt.sm87.json" in caplog.text


def test_a_record_with_an_unknown_field_is_not_used(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(PLAN))
    record = tmp_path / "portable.tensorrt.sm87.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"extra": 1}))
    assert folder.read(KEY) is None


def test_a_missing_plan_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert PlanFolder(tmp_path / "absent").read(KEY) is None
    assert not caplog.records


def test_a_failed_write_leaves_the_old_plan_and_nothing_else(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(PLAN))
    before = sorted(tmp_path.iterdir())
    (tmp_path / "portable.tensorrt.sm87.json").unlink()
    (tmp_path / "portable.tensorrt.sm87.json").mkdir()  # cannot be replaced by a file
    with pytest.raises(TensorRtError, match=r"cannot write .*--engines DIR"):
        folder.write(KEY, memoryview(b"other"))
    assert sorted(tmp_path.iterdir()) == before
    assert folder.read(KEY) is None


def test_a_second_builder_waits_for_the_first_and_finds_its_plan(tmp_path: Path) -> None:
    first, second = PlanFolder(tmp_path), PlanFolder(tmp_path)
    waits, found = threading.Event(), []

    def build() -> None:
        with second.held(waits.set):
            found.append(second.read(KEY))

    with first.held(lambda: pytest.fail("nobody else builds")):
        other = threading.Thread(target=build)
        other.start()
        assert waits.wait(timeout=30)
        first.write(KEY, memoryview(b"plan"))
    other.join(timeout=30)
    assert found == [b"plan"]


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, memoryview(b"plan"))
    before = sorted(tmp_path.iterdir())
    (tmp_path / f".{folder.plan_path(KEY).name}.4711").write_bytes(b"half a pl")
    with folder.held(lambda: None):
        assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_made_is_named_before_a_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorRtError, match=r"cannot write .*file.*--engines DIR"):
        PlanFolder(tmp_path / "file" / "engines").check_writable()


def test_the_timing_cache_is_of_one_version_and_device(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    assert folder.read_timing_cache(KEY) == b""
    folder.write_timing_cache(KEY, memoryview(b"times"))
    assert folder.read_timing_cache(KEY) == b"times"
    assert folder.read_timing_cache(KEY.model_copy(update={"version": "10.16.0"})) == b""


@pytest.mark.parametrize(("text", "name"), [("8.7", "sm87"), ("11.0", "sm110"), ("12.1", "sm121")])
def test_architectures_are_called_as_nvidia_calls_them(text: str, name: str) -> None:
    assert architecture(text) == name


@pytest.mark.parametrize(
    "text", ["", "8", "8.", ".7", "sm87", "8.7.1", "8,7", "-8.7", "²8.7", "08.7", "9" * 5000 + ".0"]
)
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(TensorRtError, match=r"X\.Y"):
        architecture(text)


def test_plans_are_in_the_bundle_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACESPEC_ENGINES", raising=False)
    assert engines_folder(tmp_path) == tmp_path / "engines"
    monkeypatch.setenv("ACESPEC_ENGINES", "/elsewhere")
    assert engines_folder(tmp_path) == Path("/elsewhere")
