"""Exit with 0 if the verifier at an address serves, else with 1 and the reason in one line.

The health check of ``Dockerfile.cloud``, by the standard gRPC health protocol:
``python check_verifier.py 127.0.0.1:50051``.
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "acespec.v1.Verifier"
TIMEOUT_S = 5.0


async def problem(address: str) -> str | None:
    """What is wrong with the verifier at ``address`` (``host:port``); None when it serves."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f"{address} does not answer ({error.code().name})"
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else f"{address} answers, but does not serve"


if __name__ == "__main__":
    sys.exit(asyncio.run(problem(sys.argv[1])))
