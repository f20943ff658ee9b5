"""What was measured, on disk: each run as soon as it is made, so that an interrupted experiment goes on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ConfigDict, ValidationError

import acespec
from acespec.bench.lab.experiment import Point
from acespec.bench.lab.row_file import RowFile
from acespec.bench.lab.strategy import RunResult

RESULT_FORMAT = 1
"""Raise it when a result's fields change, or what one of them means: older ones are then measured again."""
RESULTS_FILE = "results.sqlite"


class StoredRun(BaseModel):
    """A run's result, and the code that gave it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    code: str
    """``code_version`` at that time."""
    result: RunResult


class ResultsStore:
    """Results by all that decides them: a point's settings, the models, and the format. A context."""

    def __init__(self, folder: Path, pair_key: str) -> None:
        """``pair_key`` names the models (``PairIdentity.key``). Raises ``AcespecError`` if it cannot open."""
        self._file = RowFile(folder / RESULTS_FILE)
        self._pair_key = pair_key

    def get(self, point: Point) -> StoredRun | None:
        """What the point gave, or None if it is still to be measured."""
        data = self._file.get(self._key(point))
        if data is None:
            return None
        try:
            return StoredRun.model_validate_json(data)
        except ValidationError:  # written by hand: measure it again
            return None

    def put(self, point: Point, result: RunResult) -> StoredRun:
        """Keep what the point gave; it is on disk on return."""
        stored = StoredRun(code=code_version(), result=result)
        self._file.put(self._key(point), stored.model_dump_json().encode())
        self._file.flush()
        return stored

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ResultsStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, point: Point) -> bytes:
        return f"{RESULT_FORMAT}/{self._pair_key}/{point.key}".encode()


@cache
def code_version() -> str:
    """Names the code that decides results: 12 hexadecimal digits of a digest of its sources.

    Tables say where their runs were made by several versions; none is thrown away for an edited comment.
    """
    root = Path(acespec.__file__).parent
    digest = hashlib.sha256(acespec.__version__.encode())
    for folder in ("speculation", "wire", "edge_runtime", "cloud_verifier", "bench"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
