"""A TensorRT build that shows what it does and can be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from acespec.edge_runtime.trt_module import TensorRtModule

if TYPE_CHECKING:
    import tensorrt as trt

Progress = Callable[[str], object]
"""Told, in a few words, what the build does next."""


@contextmanager
def interruptible_build(
    tensorrt: TensorRtModule, config: trt.IBuilderConfig, file_name: str, progress: Progress
) -> Iterator[Callable[[], bool]]:
    """Show the build's phases, and let Ctrl-C end it at the next step; yields whether it was pressed.

    TensorRT calls back from C++ that knows no exceptions: a KeyboardInterrupt there would end the process.
    """
    pressed = threading.Event()
    base: Any = tensorrt.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self) -> None:
            base.__init__(self)  # the binding wants it called by name

        def phase_start(self, phase_name: str, parent_phase: str | None, _num_steps: int) -> None:
            if parent_phase is None:
                progress(f"building {file_name}: {phase_name}")

        def step_complete(self, _phase_name: str, _step: int) -> bool:
            return not pressed.is_set()

        def phase_finish(self, _phase_name: str) -> None:
            """Nothing to show."""

    monitor: trt.IProgressMonitor = Monitor()  # it must outlive the build
    config.progress_monitor = monitor
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set()) if in_main_thread else None
    try:
        yield pressed.is_set
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        config.progress_monitor = None
