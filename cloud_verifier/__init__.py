"""The verifier service: target engines, acceptance, sessions and the gRPC server."""
