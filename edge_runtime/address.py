"""What a verifier's address looks like."""

from __future__ import annotations

import re

from acespec.errors import AcespecError

ADDRESS = re.compile(r"(?P<host>[^\s/:@\[\]]+|\[[0-9A-Fa-f:.]+(%[^\s/\]]+)?\]):(?P<port>[0-9]{1,5})")


def host_of(address: str) -> str:
    """The host of ``HOST:PORT``, with the brackets around an IPv6 address.

    Raises ``AcespecError`` for anything else: gRPC would look it up, in vain, until the time-out.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        scheme = "; leave out what stands before the host" if "://" in address else ""
        raise AcespecError(
            "the verifier's address must be HOST:PORT, such as verifier.example:50051 or [::1]:50051, "
            f"not {address!r}{scheme}"
        )
    return match["host"]
