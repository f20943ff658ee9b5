"""Plans on disk: each with its key and hash beside it, written whole or not at all, used only if both fit."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from acespec.edge_runtime.plan_key import PlanKey, architecture
from acespec.edge_runtime.trt_module import TensorRtError
from acespec.models.manifest import Sealed, Sha256

logger = logging.getLogger(__name__)

ENGINES_FOLDER = "engines"
"""Inside the bundle, unless another place is named."""
ENGINES_VARIABLE = "ACESPEC_ENGINES"
"""Environment variable that names another place: a container's bundle is read-only."""


def engines_folder(bundle_folder: Path) -> Path:
    """Where a bundle's plans are: ``$ACESPEC_ENGINES`` where it is set, else a folder in the bundle."""
    chosen = os.environ.get(ENGINES_VARIABLE)
    return Path(chosen) if chosen else bundle_folder / ENGINES_FOLDER


class PlanRecord(Sealed):
    """What stands beside a plan, as JSON."""

    format_version: Literal[1] = 1
    key: PlanKey
    plan_sha256: Sha256


class PlanFolder:
    """The folder that holds a bundle's plans."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: PlanKey) -> bytes | None:
        """The plan of ``key``; None when there is none, or it is another's, or damaged. Why is logged."""
        record = self._record(key)
        if record is None:
            return None
        try:
            plan = self.plan_path(key).read_bytes()
        except OSError as error:
            logger.warning("%s is not used: it cannot be read (%s)", self.plan_path(key), _reason(error))
            return None
        if hashlib.sha256(plan).hexdigest() != record.plan_sha256:
            logger.warning(
                "%s is not used: it is damaged, its sha256 is not its record's", self.plan_path(key)
            )
            return None
        return plan

    def has(self, key: PlanKey) -> bool:
        """Whether there is a plan of ``key``, by its record alone: quick, for the plan is not read."""
        return self._record(key) is not None and self.plan_path(key).is_file()

    def _record(self, key: PlanKey) -> PlanRecord | None:
        plan_file, record_file = self.plan_path(key), self._record_path(key)
        try:
            record = PlanRecord.model_validate_json(record_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            logger.warning("%s is not used: %s cannot be read (%s)", plan_file, record_file, _reason(error))
            return None
        if record.key != key:
            logger.warning("%s is not used: its %s", plan_file, "; its ".join(_differences(record.key, key)))
            return None
        return record

    def write(self, key: PlanKey, plan: memoryview) -> None:
        """Store ``plan``. A reader sees the old or the new one; an interrupted writer leaves nothing behind.

        Raises `TensorRtError` when the folder cannot be written to.
        """
        record = PlanRecord(key=key, plan_sha256=hashlib.sha256(plan).hexdigest())
        self._replace(self.plan_path(key), plan)
        self._replace(self._record_path(key), record.model_dump_json(indent=1).encode() + b"\n")

    def read_timing_cache(self, key: PlanKey) -> bytes:
        """What TensorRT measured in earlier builds, or nothing."""
        try:
            return self._timing_path(key).read_bytes()
        except OSError:
            return b""

    def write_timing_cache(self, key: PlanKey, cache: memoryview) -> None:
        """Keep what TensorRT measured. Raises `TensorRtError` when the folder cannot be written to."""
        self._replace(self._timing_path(key), cache)

    def plan_path(self, key: PlanKey) -> Path:
        return self.path / f"{key.stem}.plan"

    def _record_path(self, key: PlanKey) -> Path:
        return self.path / f"{key.stem}.json"

    def _timing_path(self, key: PlanKey) -> Path:
        target = architecture(key.compute_capability)
        return self.path / f"{key.runtime}-{key.version}.{target}.timing"

    def check_writable(self) -> None:
        """Make the folder; raise `TensorRtError` when it cannot be written to, before a long build."""
        probe = self.path / f".writable.{os.getpid()}"
        with self._named_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()

    @contextmanager
    def held(self, on_wait: Callable[[], object]) -> Iterator[None]:
        """Keep other processes from writing plans; waits for one that does, after calling ``on_wait``.

        The lock is the folder's own and goes with the process, however it ends. What a killed one has left is
        removed. Raises `TensorRtError` when the folder cannot be written to.
        """
        self.check_writable()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            _lock(descriptor, on_wait)
            for left in self.path.glob(".*.[0-9]*"):
                with suppress(OSError):
                    left.unlink()
            yield
        finally:
            os.close(descriptor)

    def _replace(self, file: Path, content: memoryview | bytes) -> None:
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with self._named_error(file):
                beside.write_bytes(content)
                beside.replace(file)
        finally:
            with suppress(OSError):  # a read-only disk refuses to remove even what is not there
                beside.unlink(missing_ok=True)

    @contextmanager
    def _named_error(self, file: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TensorRtError(
                f"cannot write {file} ({_reason(error)}); name a folder for plans with --engines DIR"
            ) from None


def _lock(descriptor: int, on_wait: Callable[[], object]) -> None:
    """Lock an open folder. Some network file systems know no locks: there, builders are trusted to be one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        logger.info("the folder of plans cannot be locked; build in one process at a time")


def _differences(old: PlanKey, new: PlanKey) -> list[str]:
    """What of the key differs, in words."""
    before, after = old.model_dump(), new.model_dump()
    long = ("weights_sha256", "graph_sha256", "steps")
    return [
        f"{name} differs" if name in long else f"{name} is {before[name]}, here it is {after[name]}"
        for name in after
        if before[name] != after[name]
    ]


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}"
    return str(getattr(error, "strerror", None) or error)
