"""Exit with 0 if the verifier at an address serves, else with 1 and the reason in one line.

The health check of ``Dockerfile.cloud``, by the standard gRPC health protocol:
``python check_verifier.py 127.0.0.1:50051``. It takes no token; if the verifier speaks TLS, variables say
how to connect:

- ``ACESPEC_HEALTH_CA``: PEM file of the CA its certificate comes from; not set, the check is in plaintext
- ``ACESPEC_HEALTH_NAME``: a name in its certificate, if the address is not one
- ``ACESPEC_HEALTH_CERT`` and ``ACESPEC_HEALTH_KEY``: PEM files of a client's certificate and key, for mTLS
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "acespec.v1.Verifier"
TIMEOUT_S = 5.0
USAGE = "usage: python check_verifier.py HOST:PORT"


def channel(address: str, variables: Mapping[str, str]) -> grpc.aio.Channel:
    """A connection as the ``variables`` say. Raises ``OSError`` for a file that cannot be read."""
    pem = {
        name: Path(variables[f"ACESPEC_HEALTH_{name}"]).read_bytes()
        for name in ("CA", "CERT", "KEY")
        if variables.get(f"ACESPEC_HEALTH_{name}")
    }
    if "CA" not in pem:
        return grpc.aio.insecure_channel(address)
    name = variables.get("ACESPEC_HEALTH_NAME")
    options = [("grpc.ssl_target_name_override", name)] if name else []
    credentials = grpc.ssl_channel_credentials(pem["CA"], pem.get("KEY"), pem.get("CERT"))
    return grpc.aio.secure_channel(address, credentials, options)


async def problem(address: str, variables: Mapping[str, str]) -> str | None:
    """What is wrong with the verifier at ``address`` (``host:port``); None when it serves."""
    try:
        connection = channel(address, variables)
    except OSError as error:
        return f"cannot read {error.filename} ({error.strerror})"
    async with connection:
        stub = health_pb2_grpc.HealthStub(connection)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return (
                f"{address} does not answer{how(variables)} ({error.code().name}){advice(error, variables)}"
            )
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else f"{address} answers, but does not serve"


def how(variables: Mapping[str, str]) -> str:
    """How the verifier was asked."""
    return " over TLS" if variables.get("ACESPEC_HEALTH_CA") else " in plaintext"


def advice(error: grpc.aio.AioRpcError, variables: Mapping[str, str]) -> str:
    """What to do about a connection that did not come about."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    if not variables.get("ACESPEC_HEALTH_CA"):
        return "; if it speaks TLS, set ACESPEC_HEALTH_CA to the CA's PEM file"
    return (
        "; if it runs, see whether ACESPEC_HEALTH_CA signed its certificate, ACESPEC_HEALTH_NAME is in it, "
        "and, for mTLS, ACESPEC_HEALTH_CERT and ACESPEC_HEALTH_KEY are a client's"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(USAGE)
    sys.exit(asyncio.run(problem(sys.argv[1], os.environ)))
