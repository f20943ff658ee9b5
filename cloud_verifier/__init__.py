"""The verifier service: target engines, acceptance, sessions and the gRPC server.

``verifier.Verifier`` serves edges over any link, with a target behind the ``engine.TargetEngine``
interface and steps run by a ``StepRunner``; ``acceptance`` holds the decisions as pure functions.
``transformers_engine`` is the reference target, ``server`` the process around it all. Nothing is re-exported
here: the ``serve`` command's help must not import torch, nor a simulation gRPC.
"""
