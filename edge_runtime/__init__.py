"""The device's side: engines, drafter, outcome tree, resampler, budget and the session loop. No torch.

``generate`` carries one ``GenerationRequest`` from prompt to result over the streams of any ``Connector``,
with a ``DraftModel`` on any ``DraftEngine``. The module ``grpc_transport`` holds the link to a real verifier
and ``ort_engine`` the engine on ONNX Runtime; neither is imported here, so that a simulation needs neither.
"""

from __future__ import annotations

from acespec.edge_runtime.connection import Connector
from acespec.edge_runtime.draft_model import DraftModel, load_draft
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.outage import OnOutage, OutageError, OutageSettings
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.edge_runtime.statistics import GenerationMetrics

__all__ = [
    "Connector",
    "DraftEngine",
    "DraftModel",
    "DraftSettings",
    "FinishReason",
    "GenerationMetrics",
    "GenerationRequest",
    "GenerationResult",
    "OnOutage",
    "OutageError",
    "OutageSettings",
    "SessionSettings",
    "SpeculationPolicy",
    "TargetIdentity",
    "generate",
    "load_draft",
]
