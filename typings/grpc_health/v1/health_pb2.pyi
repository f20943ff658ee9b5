# What acespec uses of grpcio-health-checking, which ships without types.

class HealthCheckRequest:
    def __init__(self, service: str = ...) -> None: ...

class HealthCheckResponse:
    SERVING: int
    NOT_SERVING: int
    status: int
