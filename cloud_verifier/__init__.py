"""The verifier service: target engines, acceptance, sessions and the gRPC server.

Begin with ``verifier.Verifier``, which serves edges over any link, and follow a round from there:
``session`` is the protocol, ``steps`` asks for a forward, ``batcher`` puts what waits into one by what
``scheduler`` decides, ``engine.TargetEngine`` computes it (``transformers_engine`` is the reference), and
``acceptance`` says what stands, as pure functions. Around it, ``server`` and ``service`` bring gRPC,
``gate`` asks who a stream belongs to, ``seats``, ``registry`` and ``tenants`` say who gets room,
``observer`` is what metrics and traces listen to, and ``commands`` with ``serve_options`` is the ``serve``
command. docs/architecture.md draws it. Nothing is re-exported here: that command's help must not import
torch, nor a simulation gRPC.
"""
