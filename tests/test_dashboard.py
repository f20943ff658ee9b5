"""The dashboard and the alerts ask for metrics that exist, by labels these have, in PromQL that parses."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from acespec.cloud_verifier.commands import serve
from acespec.cloud_verifier.engine import TargetInfo
from acespec.cloud_verifier.metrics import PrometheusObserver
from acespec.cloud_verifier.serve_options import PREFIX

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/acespec-verifier.json").read_text(encoding="utf-8"))
PROMETHEUS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
SOURCE = DEPLOY / "grafana/provisioning/datasources/prometheus.yml"
PROVIDER = DEPLOY / "grafana/provisioning/dashboards/acespec.yml"
DOCUMENT = DEPLOY.parent / "docs/operations.md"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}

FROM_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to everything it reads."""
GRAFANAS = {"__rate_interval": "1m", "instance": "a:1|b:1", "tenant": ".*"}
"""Values that Grafana may put in place of its variables."""


def labels_by_metric() -> dict[str, set[str]]:
    """Every series the verifier serves, by name, with the labels it has."""
    observer = PrometheusObserver(TargetInfo("m", "f", "v", 100, 64))
    observer.opened("acme")
    labels: dict[str, set[str]] = {"up": set()}
    for family in observer.registry.collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


LABELS = labels_by_metric()


def panel_queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def substituted(expression: str) -> str:
    """``expression`` as Grafana sends it to Prometheus. Fails if a variable is left over."""
    for name, value in GRAFANAS.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    assert "$" not in expression
    return expression


EXPRESSIONS = [(name, substituted(expression)) for name, expression in panel_queries()] + [
    (rule["alert"], rule["expr"]) for rule in ALERTS
]
NAMES = [name for name, _ in EXPRESSIONS]


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=NAMES)
def test_the_metrics_of_an_expression_exist(name: str, expression: str) -> None:
    asked = set(re.findall(r"\b(?:acespec|process)_\w+|\bup\b", expression))
    assert asked, "an expression without a metric"
    assert asked <= set(LABELS)


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=NAMES)
def test_an_expression_parses_and_its_labels_exist(name: str, expression: str) -> None:
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")

    selected: list[set[str]] = []

    def check(node: Any) -> None:
        """Look at a node of the syntax tree; aggregates come before the selectors below them."""
        if isinstance(node, promql.VectorSelector):
            known = LABELS[node.name] | FROM_PROMETHEUS
            assert {matcher.name for matcher in node.matchers.matchers} <= known
            selected.append(known)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            below: list[set[str]] = []
            promql.walk(node.expr, lambda inner: collect(inner, below))
            assert below
            assert all(set(node.modifier.labels) <= known for known in below)

    def collect(node: Any, below: list[set[str]]) -> None:
        if isinstance(node, promql.VectorSelector):
            below.append(LABELS[node.name] | FROM_PROMETHEUS)

    promql.walk(promql.parse(expression), check)
    assert selected


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=NAMES)
def test_a_counter_is_read_as_a_rate_and_a_histogram_by_its_buckets(name: str, expression: str) -> None:
    for counter in re.findall(r"\w+_(?:total|bucket|sum|count)\b", expression):
        assert re.search(rf"(?:rate|increase)\({counter}\b", expression), f"{counter} only ever grows"
    for inside in re.findall(r"histogram_quantile\((.*)\)", expression):
        assert "_bucket" in inside
        assert re.search(r"by \((?:\w+, )*le\)", inside)


def own_metrics() -> set[str]:
    """The verifier's metrics, a histogram by its stem."""
    names = {name for name in LABELS if name.startswith("acespec_") and not name.endswith("_created")}
    histograms = {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}
    parts = {f"{stem}_{part}" for stem in histograms for part in ("bucket", "sum", "count")}
    return (names - parts) | histograms


def test_every_metric_is_shown() -> None:
    asked = " ".join(expression for _, expression in EXPRESSIONS)
    shown = {name for name in own_metrics() if re.search(rf"\b{name}(?:_bucket)?\b", asked)}
    assert own_metrics() - shown == {"acespec_verifier_build_info"}, "the list of verifiers is made from it"


def rows_of_table(heading: str) -> list[list[str]]:
    """The cells of the table in ``docs/operations.md`` whose first column is ``heading``."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_metric_and_its_labels_are_documented() -> None:
    documented = {}
    for names, labels, _ in rows_of_table("metric"):
        for name in re.findall(r"`(\w+)`", names):
            documented[f"acespec_verifier_{name}"] = set(labels.split(", ")) - {""}
    histograms = {name for name in own_metrics() if f"{name}_bucket" in LABELS}
    assert documented == {name: set() if name in histograms else LABELS[name] for name in own_metrics()}


def test_every_alert_is_documented() -> None:
    assert [cells[0].strip("`") for cells in rows_of_table("alert")] == [rule["alert"] for rule in ALERTS]


def test_labels_in_legends_are_those_the_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                grouped = re.search(r"by \(([\w, ]+)\)", target["expr"])
                kept = set(grouped[1].split(", ")) if grouped else FROM_PROMETHEUS
                assert label in kept, panel["title"]


def test_panels_stand_side_by_side_in_the_grid_under_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, f"{panel['title']} covers another panel"
        cells |= own


def test_variables_are_lists_of_labels_that_exist() -> None:
    assert VARIABLES["datasource"]["query"] == "prometheus"
    for name in ("instance", "tenant"):
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES[name]["query"]["query"])
        assert asked is not None
        assert asked[2] in LABELS[asked[1]] | FROM_PROMETHEUS
    used = {name for _, expression in panel_queries() for name in re.findall(r"\$(\w+)", expression)}
    assert used == {"instance", "tenant", "__rate_interval"}
    sources = [panel["datasource"]["uid"] for panel in PANELS]
    assert set(sources) == {"${datasource}"}


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            grouped = re.search(r"by \(([\w, ]+)\)", rule["expr"])
            assert label in (set(grouped[1].split(", ")) - {"le"} if grouped else FROM_PROMETHEUS)


def test_prometheus_reads_the_alerts_and_names_the_job_they_look_for() -> None:
    (rules,) = PROMETHEUS["rule_files"]
    assert (DEPLOY / rules).is_file()
    (job,) = PROMETHEUS["scrape_configs"]
    named = {name for _, expression in EXPRESSIONS for name in re.findall(r'job="([^"]+)"', expression)}
    assert named == {job["job_name"]}


def test_grafana_finds_prometheus() -> None:
    (source,) = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]


def test_compose_starts_both_on_request_and_mounts_what_they_read() -> None:
    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    mounted = {}
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"]), "latest is not a version"
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        for mount in services[name]["volumes"]:
            if mount["type"] == "bind":
                assert mount["read_only"]
                mounted[mount["target"]] = (DEPLOY.parent / mount["source"]).resolve()
    (provider,) = yaml.safe_load(PROVIDER.read_text(encoding="utf-8"))["providers"]
    assert mounted == {
        "/etc/prometheus/prometheus.yml": DEPLOY / "prometheus.yml",
        "/etc/prometheus/prometheus-alerts.yml": DEPLOY / "prometheus-alerts.yml",
        "/etc/grafana/provisioning": DEPLOY / "grafana/provisioning",
        f"{provider['options']['path']}/acespec-verifier.json": DEPLOY / "grafana/acespec-verifier.json",
    }
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    (job,) = PROMETHEUS["scrape_configs"]
    environment = services["cloud"]["environment"]
    options = {f"{PREFIX}_{option.name}".upper() for option in serve.params}
    assert set(environment) <= options
    port = environment["ACESPEC_SERVE_METRICS_PORT"]
    assert job["static_configs"] == [{"targets": [f"cloud:{port}"]}]


def test_prometheus_takes_its_configuration_and_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here")
    for arguments in (["config", "prometheus.yml"], ["rules", "prometheus-alerts.yml"]):
        result = subprocess.run(
            [promtool, "check", *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
