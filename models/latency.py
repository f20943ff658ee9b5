"""The latency profile: how long a draft step takes, by bucket and by how much context it attends to."""

from __future__ import annotations

import os
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from acespec.machine import this_processor

DEFAULT_RUNTIME = "onnxruntime/cpu"


def machine_name() -> str:
    """This machine's processor and how many of them there are, as a profile records it."""
    return f"{this_processor()}, {os.cpu_count()} cores"


class LatencyPoint(BaseModel):
    """Median wall time of one step of ``bucket`` tokens with ``context`` rows before it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bucket: Annotated[int, Field(ge=1)]
    context: Annotated[int, Field(ge=0)]
    median_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LatencyProfile(BaseModel):
    """Measured points of one machine. Every bucket is measured at least once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    """What was measured on (`machine_name`): a profile of another machine is a guess at best."""
    threads: Annotated[int, Field(ge=1)]
    runs_on: str = DEFAULT_RUNTIME
    """The runtime, and ONNX Runtime's provider behind a slash: ``onnxruntime/cuda``, ``tensorrt``."""
    points: tuple[LatencyPoint, ...] = Field(min_length=1)
    prefill: tuple[LatencyPoint, ...] = ()
    """Steps that feed a prompt, as wide as the engine takes them; nothing is planned by these."""

    @model_validator(mode="after")
    def _points_are_distinct(self) -> Self:
        if len({(point.bucket, point.context) for point in self.points}) != len(self.points):
            raise ValueError("two points share a bucket and a context")
        return self

    @property
    def buckets(self) -> tuple[int, ...]:
        """Measured buckets, ascending."""
        return tuple(sorted({point.bucket for point in self.points}))

    def step_ms(self, bucket: int, context: int) -> float:
        """Milliseconds of a step: linear between measured contexts, clamped at both ends.

        Raises ``KeyError`` for a bucket that was not measured.
        """
        measured = sorted((point.context, point.median_ms) for point in self.points if point.bucket == bucket)
        if not measured:
            raise KeyError(f"bucket {bucket} is not in the profile, which has {self.buckets}")
        contexts, medians_ms = zip(*measured, strict=True)
        return float(np.interp(context, contexts, medians_ms))
