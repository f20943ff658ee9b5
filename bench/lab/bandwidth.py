"""How close throughput on a slow link comes to what its bytes allow."""

from __future__ import annotations

from collections.abc import Sequence

from acespec.bench.lab.tables import Row


def add_bounds(rows: Sequence[Row]) -> None:
    """Give each row its ``share_of_full`` and ``share_of_bound``; None where either row has no figures.

    ``share_of_full`` is the throughput relative to the same strategy's at the highest rate. The bound is that
    of rounds that wait for every byte: what took ``T`` at the highest rate takes ``T + bytes / rate``, with
    the bytes of this row both ways, counted as the link counts them. A strategy that sends while it computes
    may pass it.
    """
    for row in rows:
        full = max(
            (other for other in rows if _series(other) == _series(row)), key=lambda other: other["rate_bps"]
        )
        row["share_of_full"] = row["share_of_bound"] = None
        if row["tokens_per_s"] is None or full["tokens_per_s"] is None:
            continue
        counted = row["counted"]
        num_bytes = row[f"{counted}_up_per_token"] + row[f"{counted}_down_per_token"]
        bound = 1.0 / (1.0 / full["tokens_per_s"] + 8.0 * num_bytes / row["rate_bps"])
        row["share_of_full"] = row["tokens_per_s"] / full["tokens_per_s"]
        row["share_of_bound"] = row["tokens_per_s"] / bound


def _series(row: Row) -> tuple[str, ...]:
    return row["dataset"], row["profile"], row["counted"], row["strategy"]
