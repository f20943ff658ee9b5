"""No token, no credential and nothing that resumes a session is logged above DEBUG, whatever happens.

Token ids are all from 7000 on, so that no count, position or time is taken for one.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.authentication import TokenAuthenticator
from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.gate import Gate
from acespec.cloud_verifier.tenants_file import TenantsFile
from acespec.edge_runtime.request import GenerationRequest
from acespec.logs import JsonFormatter
from acespec.wire import AcceptanceMode, Codec
from fake_draft import TableDraftEngine, hashed_table, mixed
from fake_target import TableTargetEngine
from in_process import generate_in_process
from verifier_client import open_request, refused, session

FIRST_ID = 7000
NUM_IDS = 12
VOCAB = FIRST_ID + NUM_IDS
PROMPT = tuple(range(FIRST_ID, FIRST_ID + 4))
OUTSIDE = 7900
"""A token the vocabulary has not, though its bits have room for it."""
TOKEN_ID = re.compile(r"(?<!\w)7[09]\d\d(?!\w)")


def table(path: tuple[int, ...], salt: int) -> NDArray[np.float32]:
    """Logits that leave only ids from ``FIRST_ID`` on."""
    logits = np.full(VOCAB, -1e9, np.float32)
    logits[FIRST_ID:] = hashed_table(NUM_IDS, salt)(path)
    return logits


def target_table(path: tuple[int, ...]) -> NDArray[np.float32]:
    return table(path, 1)


def target() -> TableTargetEngine:
    return TableTargetEngine(target_table, VOCAB)


def written(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The records of at least ``level`` with all they hold: message, traceback and extra fields."""
    formatter = JsonFormatter()
    return [formatter.format(record) for record in caplog.records if record.levelno >= level]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    """Record all there is; what a level keeps is looked at afterwards."""
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize("mode", list(AcceptanceMode))
def test_generations_tell_no_token(mode: AcceptanceMode, caplog: pytest.LogCaptureFixture) -> None:
    draft = TableDraftEngine(mixed(target_table, lambda path: table(path, 2), 0.3), VOCAB)
    request = GenerationRequest(PROMPT, end_token_ids=(), max_new_tokens=24, mode=mode)
    result = run_virtual(generate_in_process(target(), draft, request))
    assert len(result.tokens) == 24
    assert all(TOKEN_ID.fullmatch(str(token)) for token in result.tokens)
    assert not [line for line in written(caplog, logging.INFO) if TOKEN_ID.search(line)]


def test_a_broken_protocol_tells_tokens_at_debug_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with session(target(), open_request(target(), PROMPT)) as client:
            await client.round(PROMPT)
            wide = Codec(8192, AcceptanceMode.COUPLED)  # 13 bits a token, as the session's own
            await client.link.send(wide.encode_edge(client.next_round([OUTSIDE])))
            await refused(client, f"token {OUTSIDE} is outside")

    run_virtual(main())
    assert [line for line in written(caplog, logging.DEBUG) if TOKEN_ID.search(line)], (
        "the test can see tokens"
    )
    ended = written(caplog, logging.INFO)
    assert ended, "that it ended is told"
    assert not [line for line in ended if TOKEN_ID.search(line)]


def test_a_failing_target_tells_no_token(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TableTargetEngine):
        def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
            raise RuntimeError(f"out of memory for {len(feeds)} sequences")

    async def main() -> None:
        engine = Failing(target_table, VOCAB)
        async with session(engine, open_request(engine, PROMPT)) as client:
            await refused(client, "its log has the reason", client.next_round(PROMPT))

    run_virtual(main())
    lines = written(caplog, logging.INFO)
    assert [line for line in lines if "out of memory" in line], "the log has the reason"
    assert not [line for line in lines if TOKEN_ID.search(line)]


def test_what_resumes_a_session_is_at_no_level_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> bytes:
        async with session(target(), open_request(target(), PROMPT)) as client:
            await client.round(PROMPT)
            await refused(client, "is due", replace(client.next_decode(1), seq=50))
            assert client.opened is not None
            return client.opened.session_id

    session_id = run_virtual(main())
    lines = written(caplog, logging.DEBUG)
    assert [line for line in lines if hashlib.sha256(session_id).hexdigest()[:16] in line]
    assert not [line for line in lines if session_id.hex() in line or repr(session_id)[2:-1] in line]


class EndedError(Exception):
    """A stream that was ended."""


@pytest.mark.parametrize(
    "authorization", ["Bearer {secret}", "Basic {secret}", "{secret}", "bearer {secret} {secret}"]
)
async def test_credentials_are_at_no_level_in_the_log(
    authorization: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "acespec_5ecret5ecret5ecret5ecret"  # noqa: S105 - of nobody

    async def abort(code: grpc.StatusCode, details: str) -> None:
        raise EndedError(details)

    context = SimpleNamespace(
        invocation_metadata=lambda: (("authorization", authorization.format(secret=secret)),),
        auth_context=dict,
        peer=lambda: "ipv4:192.0.2.1:50000",
        abort=abort,
    )
    gate = Gate(TokenAuthenticator(lambda: TenantsFile(tenants={}, tokens=())))
    with pytest.raises(EndedError) as told:
        await gate.tenant(cast("Any", context))
    (line,) = written(caplog, logging.DEBUG)
    assert "192.0.2.1" in line
    assert secret not in line + str(told.value)
