"""The request outstanding: what is sent again over another stream, and in another session."""

from __future__ import annotations

from acespec.edge_runtime.requests import Requests
from acespec.wire import Decode, Round


def test_a_decode_that_is_to_go_on_stays_one_request() -> None:
    requests = Requests()
    requests.ask(Decode(0, prefix_check=7, count=5))
    requests.committed(3)
    assert requests.tokens_due == 2
    assert requests.ask_on(4) == Decode(0, 7, 9) == requests.outstanding
    requests.committed(5)
    assert requests.tokens_due == 1
    requests.committed(1)
    assert (requests.tokens_due, requests.outstanding, requests.next_seq) == (0, None, 1)


def test_a_new_session_is_asked_for_what_is_still_due() -> None:
    requests = Requests()
    requests.ask(Round(0, 1, (4, 5)))
    requests.committed(2)
    assert requests.tokens_due == 0
    requests.ask(Decode(1, 2, count=5))
    requests.committed(3)
    requests.ask_on(4)
    requests.begin_anew(prefix_check=9)
    assert requests.outstanding == Decode(0, 9, 6)
    assert requests.ask_on(1) == Decode(0, 9, 7)
    assert requests.next_seq == 1
