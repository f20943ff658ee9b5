import grpc
import grpc.aio

from .health import aio
from .health_pb2 import HealthCheckRequest, HealthCheckResponse

class HealthStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    Check: grpc.aio.UnaryUnaryMultiCallable[HealthCheckRequest, HealthCheckResponse]

def add_HealthServicer_to_server(servicer: aio.HealthServicer, server: grpc.aio.Server) -> None: ...  # noqa: N802
