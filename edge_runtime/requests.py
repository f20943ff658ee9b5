"""The request a session has no whole answer to: its number, and how it is put on another stream. No I/O."""

from __future__ import annotations

import dataclasses

from acespec.wire import SEQ_MODULUS, Decode, EdgeMessage, MoreDraws, Round


class Requests:
    """Numbers requests and remembers the one outstanding, of which there is at most one at a time.

    A round stays outstanding until its outcome is committed: while the edge asks for more draws to make of a
    rejection, the round itself is what a server that has forgotten the session would need.
    """

    def __init__(self) -> None:
        self.next_seq = 0
        self._request: Round | Decode | None = None
        self._more: MoreDraws | None = None
        self._tokens_due = 0

    @property
    def outstanding(self) -> EdgeMessage | None:
        """What must be sent again on another stream of the same session, byte for byte."""
        return self._request if self._more is None else self._more

    @property
    def seq(self) -> int:
        """The number of the request outstanding."""
        assert self._request is not None
        return self._request.seq

    def ask(self, request: Round | Decode) -> None:
        """``request``, which has the number ``next_seq``, is under way."""
        assert self._request is None, "one request at a time"
        assert request.seq == self.next_seq
        self._request = request
        self._tokens_due = request.count if isinstance(request, Decode) else 0
        self.next_seq = (self.next_seq + 1) % SEQ_MODULUS

    @property
    def tokens_due(self) -> int:
        """Tokens still to come of those the cloud was asked to decode by itself; 0 if it is not."""
        return max(self._tokens_due, 0)

    @property
    def races(self) -> bool:
        """Whether what is outstanding is a race."""
        return isinstance(self._request, Decode) and self._request.race

    def ask_on(self, count: int) -> Decode:
        """Let the cloud decode ``count`` tokens more than it was asked to; returns what asks for it."""
        assert isinstance(self._request, Decode)
        assert count >= 1
        self._request = dataclasses.replace(self._request, count=self._request.count + count)
        self._tokens_due += count
        return self._request

    def ask_more(self, request: MoreDraws) -> None:
        """``request``, about the round outstanding, is under way."""
        self._more = request

    def received_more(self) -> None:
        """It was answered."""
        self._more = None

    def committed(self, count: int) -> None:
        """The outcome of the round, or ``count`` tokens decoded by the cloud, are final."""
        self._tokens_due -= count
        if self._tokens_due <= 0:
            self._request = None

    def begin_anew(self, prefix_check: int) -> None:
        """The server has forgotten the session: state the request outstanding for a new one.

        It is the same chain behind the same committed tokens, so shared randomness decides it alike; all
        committed tokens, a resampled one included, come with ``Open``. Of tokens the cloud decodes, those
        still due are asked for. More draws wait until the verdict they belong to has come again.
        """
        self._more = None
        self.next_seq = 0
        if isinstance(self._request, Round):
            self._request = dataclasses.replace(self._request, seq=0, resampled=None)
        elif self._request is not None:
            self._request = Decode(0, prefix_check, self._tokens_due, race=self._request.race)
        self.next_seq = int(self._request is not None)
