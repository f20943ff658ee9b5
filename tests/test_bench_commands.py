"""``acespec bench``: every command over table models, from prompts to files that say what was measured."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acespec.bench.lab import measuring, plots
from acespec.bench.lab.acespec_strategies import AceSpec
from acespec.bench.lab.baselines import Dssd
from acespec.bench.lab.bench_options import REAL
from acespec.bench.lab.commands import bench
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.measuring import EXPERIMENTS
from acespec.bench.lab.strategies import STRATEGY_NAMES
from acespec.bench.lab.strategy import World
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, pair
from bench_world import table_bench

pytest.importorskip("matplotlib")  # the device has none

DEVICES = "orin-llama-1b/a100-70b"
SMALL = {
    "table1": ("--rtt", "10,200", "--profiles", DEVICES),
    "table2": (),
    "fig5": ("--rates", "100Mbps,10kbps", "--profiles", DEVICES, "--strategies", "vanilla,acespec_coupled"),
    "fig6": ("--budgets", "20,80"),
    "fig7": ("--temperatures", "0.3,1.7"),
    "sweep": ("--rtt", "50,10", "--gammas", "2,4", "--strategies", "acespec_coupled,dssd"),
    "race": ("--rtt", "50,10", "--gammas", "2,4", "--budgets", "3,8", "--profiles", DEVICES),
}
ROWS = {
    "table1": 2 * 2 * len(STRATEGY_NAMES),
    "table2": 2 * 5,
    "fig5": 2 * 2 * 2 * 3,
    "fig6": 2 * 3 * 2,
    "fig7": 2 * 2 * 3,
    "sweep": 2 * 2 * 2 * 3,
    "race": 2 * 2 * (4 + 2 + 3),
}


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "demo_bench", table_bench)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("prompts")
    for name, texts in (("letters", ("say a", "say b")), ("digits", ("one",))):
        lines = [json.dumps({"id": text, "prompt": text}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [folder / "letters.jsonl", folder / "digits.jsonl"]


def run(name: str, folder: Path, prompts: list[Path], *more: str) -> Result:
    files = [str(path) for path in prompts]
    arguments = [name, "-o", str(folder), "--store", str(folder / "rows"), "--max-new-tokens", "8"]
    arguments += [*SMALL[name], *more, "--prompts", *files]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["acespec", "bench", *arguments])
        return CliRunner().invoke(bench, arguments)


def ran(*arguments: Any) -> Result:
    result = run(*arguments)
    assert result.exception is None, result.exception
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, prompts: list[Path]) -> Path:
    """A folder with all experiments."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "demo_bench", table_bench)
        for name in EXPERIMENTS:
            ran(name, folder, prompts)
    return folder


def document(folder: Path, name: str) -> dict[str, Any]:
    content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_command_writes_its_rows_tables_and_figures(measured: Path, name: str) -> None:
    content = document(measured, name)
    assert len(content["rows"]) == ROWS[name]
    assert all(row["failed"] is None and row["tokens_per_s"] > 0.0 for row in content["rows"])
    assert {row["dataset"] for row in content["rows"]} == {"letters", "digits"}
    text = (measured / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {content['title']}\n")
    assert content["plots"]
    for plot in content["plots"]:
        assert f"]({plot})" in text
        assert (measured / plot).read_bytes().startswith(b"<?xml")
        assert (measured / plot).with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_rows_have_the_columns_that_are_promised(measured: Path) -> None:
    table1, table2 = document(measured, "table1"), document(measured, "table2")
    assert {"dataset", "profile", "rtt_ms", "strategy", "tokens_per_s", "speedup"} <= set(table1["rows"][0])
    assert {row["strategy"] for row in table1["rows"]} == set(STRATEGY_NAMES)
    assert {"dataset", "allocation", "ttft_ms", "hit_rate", "tokens_per_s"} <= set(table2["rows"][0])
    assert [row["allocation"] for row in table2["rows"][:4]] == ["single", "uniform", "geometric", "adaptive"]
    assert {entry["measure"] for entry in table2["differences"]} == {"hit_rate", "tokens_per_s", "ttft_ms"}
    for row in document(measured, "fig5")["rows"]:
        assert row["share_of_full"] <= 1.001
    assert document(measured, "sweep")["break_even"]


def test_a_document_says_how_to_measure_it_again(measured: Path) -> None:
    settings = document(measured, "fig7")["settings"]
    assert settings["datasets"]["letters"] == {"prompts": 2, "ids": ["say a", "say b"]}
    assert settings["seeds"] == [0]
    assert settings["max_new_tokens"] == 8
    assert [sampling["temperature"] for sampling in settings["sampling"]] == [0.3, 1.7]
    assert settings["pair"]["name"] == "tables"
    (profile,) = settings["profiles"].values()
    assert "Jetson AGX Orin" in profile["edge"]["source"]
    assert len(settings["code"]) == 1
    command = shlex.split(settings["command"])
    assert command[:5] == ["acespec", "bench", "fig7", "-o", str(measured)]
    assert command[-1].endswith("digits.jsonl")


def test_the_race_is_set_beside_the_fastest_rounds(measured: Path) -> None:
    content = document(measured, "race")
    rows = [row for row in content["rows"] if row["dataset"] == "letters" and row["rtt_ms"] == 10.0]
    speeds = {row["way"]: row["tokens_per_s"] for row in rows}
    assert {
        "autoregressive",
        "race",
        "auto",
        "colocated",
        "rounds 2",
        "rounds 4",
        "rounds 2/3",
        "rounds 4/8",
    } <= set(speeds)
    assert "rounds 4/3" not in speeds, "a budget holds its chain"
    best = max((way for way in speeds if way.startswith("rounds")), key=lambda way: speeds[way])
    text = (measured / "race.md").read_text(encoding="utf-8")
    ratios = next(line for line in text.splitlines() if line.startswith(f"| {DEVICES} | letters | 10 ms"))
    assert f"{best}: " in ratios
    assert f"{speeds['race'] / speeds[best]:.3f}" in ratios
    assert f"{speeds['race'] / speeds['colocated']:.3f}" in ratios


def test_models_can_be_named_and_must_go_together(
    tmp_path: Path, prompts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path))
    gone = run("table2", tmp_path / "out", prompts, "--draft", str(tmp_path / "none"))
    assert isinstance(gone.exception, AcespecError)
    assert str(tmp_path / "none") in str(gone.exception)


class Resources(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]


def test_the_report_has_every_experiment_and_needs_nothing_from_elsewhere(measured: Path) -> None:
    text = (measured / "report.html").read_text(encoding="utf-8")
    page = Resources()
    page.feed(text)
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "@import" not in text
    embedded = [base64.b64decode(each.partition(",")[2]) for each in page.addresses if each[0] == "d"]
    drawn = [
        (measured / plot).read_bytes() for name in EXPERIMENTS for plot in document(measured, name)["plots"]
    ]
    assert embedded == drawn
    for name in EXPERIMENTS:
        assert f'<h2 id="{name}">' in text


def test_what_is_measured_is_not_measured_again_and_gives_the_same_files(
    measured: Path, prompts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_again(*_: object) -> None:
        raise AssertionError("it is there")

    before = {path.name: path.read_bytes() for path in measured.iterdir() if path.is_file()}
    monkeypatch.setattr(Laboratory, "run", not_again)
    for name in ("table2", "fig5"):
        ran(name, measured, prompts)
    after = {path.name: path.read_bytes() for path in measured.iterdir() if path.is_file()}
    kept = [name for name in before if not name.startswith("results.sqlite")]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_parts_make_up_the_whole(
    tmp_path: Path, prompts: list[Path], measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("1/2", "2/2"):
        ran("table2", tmp_path, prompts, "--part", part)
        assert not (tmp_path / "table2.json").exists()
    monkeypatch.setattr(Laboratory, "run", None)
    ran("table2", tmp_path, prompts)
    assert document(tmp_path, "table2")["rows"] == document(measured, "table2")["rows"]


def test_a_limit_and_seeds_say_how_much_is_run(tmp_path: Path, prompts: list[Path]) -> None:
    ran("table2", tmp_path, prompts, "--limit", "1", "--seeds", "3,4,4", "--no-plots")
    content = document(tmp_path, "table2")
    assert {(row["prompts"], row["runs"]) for row in content["rows"]} == {(1, 2)}
    assert content["settings"]["seeds"] == [3, 4]
    assert content["plots"] == []
    assert not list(tmp_path.glob("*.png"))


def test_a_failed_point_is_shown_as_failed_everywhere(
    tmp_path: Path, prompts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Dssd, world: World) -> None:
        await world.target_forward(1)
        raise AcespecError("the <b>link</b> | broke")

    with monkeypatch.context() as patch:
        patch.setattr(Dssd, "run", fail)
        result = run("sweep", tmp_path, prompts)
    assert isinstance(result.exception, AcespecError)
    assert "12 of 36 runs failed" in str(result.exception)
    content = document(tmp_path, "sweep")
    failed = [row for row in content["rows"] if row["failed"]]
    assert len(content["rows"]) == ROWS["sweep"]
    assert {row["strategy"] for row in failed} == {"dssd"}
    assert all(row["tokens_per_s"] is None and row["speedup"] is None for row in failed)
    assert failed[0]["failed"]["reasons"] == ["the <b>link</b> | broke"]
    text = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert re.search(r"^\| dssd \| failed \| failed \|$", text, re.MULTILINE)
    assert "the <b>link</b> \\| broke" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the &lt;b&gt;link&lt;/b&gt; | broke" in page
    assert 'class="failed">failed</td>' in page
    ran("sweep", tmp_path, prompts)
    assert not any(row["failed"] for row in document(tmp_path, "sweep")["rows"])


def test_coupled_text_is_the_same_in_every_cell_of_a_figure(
    tmp_path: Path, prompts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    plain = Laboratory.run

    def noted(self: Laboratory, strategy: Any, case: Any, conditions: Any) -> Any:
        result = plain(self, strategy, case, conditions)
        if isinstance(strategy, AceSpec):
            texts.setdefault((case.id, conditions.seed), set()).add(result.tokens)
        return result

    monkeypatch.setattr(Laboratory, "run", noted)
    ran("fig6", tmp_path, prompts, "--no-plots")
    assert len(texts) == 3
    assert all(len(each) == 1 for each in texts.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--profiles", "orin-qwen3-0.6b"), "is no pair of profiles"),
        (("--seeds", "1,-1"), "-1 is not in the range"),
        (("--part", "3/2"), "not of the form K/N"),
        (("--rtt", "nan"), "not a finite number"),
    ],
)
def test_an_option_that_cannot_be_is_a_usage_error(
    tmp_path: Path, prompts: list[Path], arguments: tuple[str, ...], says: str
) -> None:
    result = run("table2", tmp_path, prompts, *arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_an_unknown_strategy_is_a_usage_error(tmp_path: Path, prompts: list[Path]) -> None:
    result = run("table1", tmp_path, prompts, "--strategies", "vanilla,magic")
    assert result.exit_code == 2
    assert "'magic' is none; choose from autoregressive, vanilla" in " ".join(result.output.split())


def test_data_sets_of_one_name_are_refused(tmp_path: Path, prompts: list[Path]) -> None:
    result = run("table2", tmp_path, [*prompts, prompts[0]])
    assert "two data sets are called letters" in str(result.exception)


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text('{"id": "1", "prompt": "a"}\n{"id": "1", "prompt": "b"}\n', encoding="utf-8")
    assert "has an id twice" in str(run("table2", tmp_path, [path]).exception)


def test_a_budget_that_does_not_fit_is_one_line(tmp_path: Path, prompts: list[Path]) -> None:
    result = run("fig6", tmp_path, prompts, "--budgets", "90")
    assert isinstance(result.exception, AcespecError)
    assert f"budget 90 needs {90 - pair(DEMO_PAIR).gamma} branches" in str(result.exception)


def test_a_missing_matplotlib_is_told_before_anything_is_measured(
    tmp_path: Path, prompts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("table2", tmp_path, prompts)
    assert isinstance(result.exception, AcespecError)
    assert "give --no-plots, or run: pip install 'acespec[plot]'" in str(result.exception)
    assert not list(tmp_path.iterdir())
    ran("table2", tmp_path, prompts, "--no-plots")


def test_an_output_that_is_a_file_is_refused(tmp_path: Path, prompts: list[Path]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = run("table2", tmp_path / "file" / "below", prompts)
    assert isinstance(result.exception, AcespecError)
    assert "name another --output" in str(result.exception)


def test_help_needs_neither_models_nor_libraries_that_may_be_missing() -> None:
    code = (
        "import sys\nfrom acespec.cli import main\n"
        "for words in (['bench', '--help'], ['bench', 'table1', '--help']):\n"
        "    try: main(words)\n    except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'transformers', 'onnxruntime', 'matplotlib', 'jinja2'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_experiment_has_its_views_and_figures() -> None:
    assert {*EXPERIMENTS, REAL} == set(bench.commands) == set(plots._FIGURES)
