"""What an export can be asked for. Free of torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.errors import AcespecError
from acespec.models.manifest import WIDEST_BUCKET

PRECISIONS = ("fp32", "int8", "int4")
DEFAULT_BUCKETS = (1, 8, 16, 32)
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class ExportOptions:
    """What a bundle shall be like. Raises ``AcespecError`` naming the option that is out of range."""

    buckets: tuple[int, ...]
    """Step widths, ascending, each once."""
    precision: str
    context: int
    """Positions the draft may use at most."""

    def __post_init__(self) -> None:
        if not self.buckets or min(self.buckets) < 1 or max(self.buckets) > WIDEST_BUCKET:
            listed = ", ".join(map(str, self.buckets)) or "none"
            raise AcespecError(f"bucket widths must be between 1 and {WIDEST_BUCKET}, not {listed}")
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))
        if self.precision not in PRECISIONS:
            raise AcespecError(
                f"there is no precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}"
            )
        if self.context < 1:
            raise AcespecError(f"the context must be at least 1, not {self.context}")


def parse_buckets(text: str) -> tuple[int, ...]:
    """Numbers from ``1,8,16``. Raises ``AcespecError`` for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise AcespecError(
            f"bucket widths are numbers with commas between, such as 1,8,16; not {text!r}"
        ) from None
