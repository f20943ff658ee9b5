"""What an export can be asked for. Free of torch, for the command line."""

from __future__ import annotations

from collections.abc import Sequence

from acespec.errors import AcespecError

PRECISIONS = ("fp32", "int8", "int4")
DEFAULT_BUCKETS = (1, 8, 16, 32)
DEFAULT_CONTEXT = 2048
WIDEST_BUCKET = 1024


def checked_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Bucket widths ascending, each once. Raises ``AcespecError`` for widths no engine can have."""
    if not buckets or min(buckets) < 1 or max(buckets) > WIDEST_BUCKET:
        listed = ", ".join(map(str, buckets)) or "none"
        raise AcespecError(f"bucket widths must be between 1 and {WIDEST_BUCKET}, not {listed}")
    return tuple(sorted(set(buckets)))


def parse_buckets(text: str) -> tuple[int, ...]:
    """Bucket widths from ``1,8,16``. Raises ``AcespecError`` for anything else."""
    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError:
        raise AcespecError(
            f"bucket widths are numbers with commas between, such as 1,8,16; not {text!r}"
        ) from None
    return checked_buckets(widths)
