"""The protocol's state machine, and the room for keys and values, whatever comes in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from protocol_machine import ProtocolMachine, TightMachine

EVENTS = (
    "finished",
    "resumed",
    "replayed",
    "came late",
    "stolen",
    "altered",
    "broken",
    "closed",
    "expired",
    "displaced",
    "failed",
    "raced",
)
"""What must have come about in a run of many examples, for it to have tested anything."""


@pytest.mark.parametrize("machine", [ProtocolMachine, TightMachine])
def test_no_order_of_events_loses_a_token_or_leaves_anything_behind(
    machine: type[ProtocolMachine],
) -> None:
    machine.totals.clear()
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=60))
    totals = machine.totals
    missing = [event for event in EVENTS if not totals[event]]
    assert not missing, f"nothing was tested of {missing}: {totals}"
    if machine is TightMachine:
        assert totals["evicted"] >= 20
        assert totals["busy"] >= 20
