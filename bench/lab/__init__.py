"""The laboratory: strategies compared over one simulated link, in virtual time, with models that really run.

The edge's own loop and the verifier's own code run here, and so do the baselines, over the same models, the
same link and the same devices. What the models say is kept in a store: a run whose rows are all there needs
no model and gives the same result on any machine. ``strategy`` says what a strategy is, ``profiles`` how long
steps take, ``simulated_link`` what the network does, ``row_sources`` what a row is.
"""

from __future__ import annotations

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive
from acespec.bench.lab.cases import PromptCase, chat_encoder, load_cases
from acespec.bench.lab.lab_pair import LabPair, demo_pair, real_pair, recorded_pair
from acespec.bench.lab.laboratory import Conditions, Laboratory
from acespec.bench.lab.memo_models import MissingRowError, StoreReport
from acespec.bench.lab.profiles import DeviceProfile, TargetProfile, parse_profiles
from acespec.bench.lab.simulated_link import Charged, LinkConditions
from acespec.bench.lab.strategy import RunResult, Strategy, World

__all__ = [
    "AceSpec",
    "Autoregressive",
    "Charged",
    "Conditions",
    "DeviceProfile",
    "LabPair",
    "Laboratory",
    "LinkConditions",
    "MissingRowError",
    "PromptCase",
    "RunResult",
    "StoreReport",
    "Strategy",
    "TargetProfile",
    "World",
    "chat_encoder",
    "demo_pair",
    "load_cases",
    "parse_profiles",
    "real_pair",
    "recorded_pair",
]
