"""What a user would pick instead: the baselines of docs/baselines.md as strategies of the laboratory.

Each is written from its paper, over the same models, sampling, devices and link as everything else here; what
crosses the link is encoded, and its bytes counted.
"""

from __future__ import annotations

from acespec.bench.lab.baselines.colocated import Colocated
from acespec.bench.lab.baselines.dssd import Dssd
from acespec.bench.lab.baselines.e2sci import E2Sci, Leniency
from acespec.bench.lab.baselines.picospec import PicoSpec
from acespec.bench.lab.baselines.pipesd import PipeSd
from acespec.bench.lab.baselines.split import Split
from acespec.bench.lab.baselines.vanilla import Vanilla

__all__ = ["Colocated", "Dssd", "E2Sci", "Leniency", "PicoSpec", "PipeSd", "Split", "Vanilla"]
