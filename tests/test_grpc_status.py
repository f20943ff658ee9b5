"""Which ends of a gRPC stream are worth another, and what a failed handshake is called."""

from __future__ import annotations

import grpc
import pytest

from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.errors import cause_of
from acespec.edge_runtime.grpc_status import connect_error, stream_error
from acespec.wire import ErrorCode

HERE = "127.0.0.1:5"
FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5: "
SSL = FAILED + "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:"


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)"),
        (grpc.StatusCode.OK, ""),
        (grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11"),
        (grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>: 1"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "upstream request timeout"),
    ],
)
def test_ends_that_are_the_networks(status: grpc.StatusCode, detail: str) -> None:
    error = stream_error(status, detail, HERE)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message.startswith(f"lost the verifier at {HERE}")
    assert error.message == cause_of(error) + "; is it still running?"
    assert detail in error.message


@pytest.mark.parametrize(
    ("status", "detail", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "malformed", ErrorCode.INVALID_ARGUMENT),
        (grpc.StatusCode.FAILED_PRECONDITION, "another model", ErrorCode.FAILED_PRECONDITION),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "over quota", ErrorCode.RESOURCE_EXHAUSTED),
        (grpc.StatusCode.UNAUTHENTICATED, "who are you?", ErrorCode.UNAUTHENTICATED),
        (grpc.StatusCode.PERMISSION_DENIED, "not yours", ErrorCode.PERMISSION_DENIED),
        (grpc.StatusCode.ABORTED, "taken over", ErrorCode.ABORTED),
        (grpc.StatusCode.INTERNAL, "the verifier failed; its log has the reason", ErrorCode.INTERNAL),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ErrorCode.INTERNAL),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "message larger than max (5 vs. 4)",
            ErrorCode.RESOURCE_EXHAUSTED,
        ),
    ],
)
def test_ends_that_are_the_servers_last_word(status: grpc.StatusCode, detail: str, code: ErrorCode) -> None:
    error = stream_error(status, detail, HERE)
    assert error.code is code
    assert detail in error.message


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            SSL + "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            "not trusted (unable to get local issuer certificate); give the CA it comes from with --tls-ca",
        ),
        (SSL + "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "not valid now"),
        (SSL + "OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid", "does not speak TLS"),
        (
            SSL + "OPENSSL_internal:SSLV3_ALERT_HANDSHAKE_FAILURE: x",
            "refused (SSLV3_ALERT_HANDSHAKE_FAILURE)",
        ),
        (
            FAILED + "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification "
            "Check failed.",
            "for another name",
        ),
    ],
)
def test_handshakes_that_no_attempt_mends(detail: str, said: str) -> None:
    error = connect_error(detail, HERE, ChannelSecurity(tls=True))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert said in error.message
    assert error.message.startswith(f"TLS with the verifier at {HERE} failed: ")


@pytest.mark.parametrize(
    ("detail", "tls", "reason", "hint"),
    [
        (
            FAILED + "Failed to connect to remote host: Connection refused",
            False,
            "Connection refused",
            "serve",
        ),
        (FAILED + "Handshake read failed (Socket closed)", True, "Socket closed", "--tls-cert"),
        (FAILED.replace("UNKNOWN", "UNAVAILABLE") + "Socket closed", False, "Socket closed", "--tls"),
        (
            "errors resolving a.b:1: [field:hostname lookup error:address lookup failed for a.b:1: "
            "Domain name not found]",
            False,
            "(Domain name not found)",
            "check the address",
        ),
        ("", False, "no reason given", "check the address"),
    ],
)
def test_connections_that_another_attempt_may_bring_about(
    detail: str, tls: bool, reason: str, hint: str
) -> None:
    error = connect_error(detail, HERE, ChannelSecurity(tls=tls))
    assert error.code is ErrorCode.UNAVAILABLE
    assert reason in error.message
    assert hint in error.message
    assert "last error" not in error.message


def test_what_others_wrote_becomes_one_line_of_bounded_length() -> None:
    error = stream_error(grpc.StatusCode.UNKNOWN, "a\n  b\r\n" + "c" * 1000, HERE)
    assert "(a b ccc" in error.message
    assert "\n" not in error.message
    assert len(error.message) < 600
