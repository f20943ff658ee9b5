"""``acespec plan``: what it prints, as a table and as JSON, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from acespec.cli import main
from acespec.edge_runtime.plan_command import plan
from acespec.errors import AcespecError

COMMON = ("--rtt", "50", "--draft-step-ms", "8.5", "--target-step-ms", "72", "--alpha", "0.59")


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(plan, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["strategy"]: entry for entry in report["strategies"]}


def test_json_has_every_strategy_and_who_wins() -> None:
    report = planned(*COMMON)
    strategies = by_name(report)
    assert set(strategies) == {
        "autoregressive",
        "vanilla",
        "dssd",
        "picospec",
        "colocated",
        "acespec_coupled",
        "acespec_residual",
        "race",
        "auto",
    }
    fastest = max(strategies.values(), key=lambda entry: entry["tokens_per_s"])
    assert report["best"] == fastest["strategy"] == "colocated"
    assert strategies["autoregressive"]["speedup"] == 1.0
    assert strategies["acespec_coupled"]["speedup"] == pytest.approx(1.34, abs=0.05)
    assert strategies["acespec_coupled"]["budget"] > strategies["acespec_coupled"]["gamma"]
    assert strategies["autoregressive"]["forwards_per_token"] == 1.0
    assert strategies["race"]["speedup"] > 1.1 * strategies["acespec_coupled"]["speedup"]
    assert 0.0 < strategies["race"]["forwards_per_token"] < 1.0
    assert 50.0 < report["break_even_rtt_ms"] < 150.0
    assert report["settings"]["rtt"] == 50.0


def test_beyond_the_break_even_rounds_lose_and_the_race_does_not() -> None:
    at = planned(*COMMON)["break_even_rtt_ms"]
    for rtt, lose in ((at - 1.0, False), (at + 20.0, True)):
        strategies = by_name(planned("--rtt", str(rtt), *COMMON[2:]))
        assert (strategies["acespec_coupled"]["speedup"] < 1.0) is lose
        assert strategies["race"]["speedup"] > 1.0
        assert strategies["auto"]["speedup"] >= strategies["race"]["speedup"]


def test_a_rate_counts_all_bytes_or_those_of_messages() -> None:
    free, wire, payload = (
        by_name(planned(*COMMON, *more))["acespec_coupled"]["ms_per_token"]
        for more in ((), ("--rate", "25kbps"), ("--rate", "25kbps", "--count", "payload"))
    )
    assert free < payload < wire
    assert planned(*COMMON, "--rate", "25kbps")["settings"]["rate"] == 25_000.0


def test_step_times_by_width_and_a_fixed_plan() -> None:
    pairs = (*COMMON[:2], "--draft-step-ms", "1=8.5, 12=9.5", *COMMON[4:])
    coupled = by_name(planned(*pairs))["acespec_coupled"]
    assert coupled["budget"] - coupled["gamma"] in (1, 12)
    fixed = by_name(planned(*pairs, "--gamma", "3", "--budget", "9"))["acespec_coupled"]
    assert (fixed["gamma"], fixed["redraft"], fixed["budget"]) == (3, 3, 9)
    assert fixed["ms_per_token"] >= coupled["ms_per_token"]


def test_the_table_says_what_follows() -> None:
    output = CliRunner().invoke(plan, list(COMMON), catch_exceptions=False).output
    assert "acespec_coupled" in output
    assert "colocated wins: " in output
    assert "Best of those that draft at the edge is race: " in output
    assert "beats the cloud alone up to a round trip of 9" in output
    hopeless = [*COMMON[:2], "--draft-step-ms", "200", *COMMON[4:]]
    output = CliRunner().invoke(plan, hopeless, catch_exceptions=False).output
    assert "slower than the cloud alone at any round trip" in output


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--alpha", "1.5"), "--alpha"),
        (("--alpha", "nan"), "--alpha"),
        (("--rate", "50"), "write it as 50kbps"),
        (("--draft-step-ms", "1=8,x=9"), "--draft-step-ms"),
        (("--draft-step-ms", "0"), "--draft-step-ms"),
        (("--target-step-ms", "0"), "--target-step-ms"),
        (("--gamma", "0"), "--gamma"),
    ],
)
def test_options_out_of_range(arguments: tuple[str, ...], fragment: str) -> None:
    result = CliRunner().invoke(plan, [*COMMON, *arguments])
    assert result.exit_code == 2
    assert fragment in result.output


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--gamma", "5", "--budget", "4"), "it must be at least 5, not 4"),
        (("--gamma", "5", "--budget", "60"), "use a budget of at most 37"),
        (("--budget", "99"), "use a budget of at most 64"),
    ],
)
def test_a_budget_that_does_not_fit_is_one_line(arguments: tuple[str, ...], fragment: str) -> None:
    with pytest.raises(AcespecError, match=fragment):
        CliRunner().invoke(plan, [*COMMON, *arguments], catch_exceptions=False)
    with pytest.raises(SystemExit, match=fragment):
        main(["plan", *COMMON, *arguments])
