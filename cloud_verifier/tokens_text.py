"""Changes to the text of a tenants' file that leave the rest of it, comments included, as it was.

Tokens are added as blocks at the end and taken out as blocks. The result is read again and must say exactly
what was meant; where it does not, for the file was written in another of TOML's ways, nothing is changed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import tomllib  # type: ignore[import-not-found]  # Python 3.10 lacks it; the verifier needs 3.11

from acespec.cloud_verifier.documents import toml_value
from acespec.errors import AcespecError

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
HEADER = "[[tokens]]"


def with_tenant(text: str, name: str, quota: Mapping[str, int | float]) -> str:
    """``text`` with a new tenant. Raises ``AcespecError``."""
    before = tomllib.loads(text)
    wanted = copy.deepcopy(before)
    wanted.setdefault("tenants", {})[name] = dict(quota)
    key = name if BARE_KEY.fullmatch(name) else toml_value(name)
    lines = [f"[tenants.{key}]", *(f"{field} = {toml_value(value)}" for field, value in quota.items())]
    return checked(appended(text, lines), wanted)


def with_token(text: str, tenant: str, sha256: str, created: datetime, expires: datetime | None) -> str:
    """``text`` with a new token. Raises ``AcespecError``."""
    values: dict[str, Any] = {"tenant": tenant, "sha256": sha256, "created": created}
    if expires is not None:
        values["expires"] = expires
    wanted = copy.deepcopy(tomllib.loads(text))
    wanted.setdefault("tokens", []).append(values)
    lines = [HEADER, *(f"{field} = {toml_value(value)}" for field, value in values.items())]
    return checked(appended(text, lines), wanted)


def without_token(text: str, sha256: str) -> str:
    """``text`` without the token of that hash, which it has. Raises ``AcespecError``."""
    wanted = copy.deepcopy(tomllib.loads(text))
    wanted["tokens"] = [token for token in wanted["tokens"] if token["sha256"] != sha256]
    if not wanted["tokens"]:
        del wanted["tokens"]
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = lines[start:end]
        if block[0].strip() == HEADER and any(sha256 in line for line in block):
            while len(block) > 1 and not block[-1].split("#")[0].strip():  # what follows it is not its own
                block.pop()
            before, after = lines[:start], lines[start + len(block) :]
            if before and not before[-1].strip():  # the gap it was added with
                before.pop()
            return checked("".join(before + after), wanted)
    raise unfamiliar()


def appended(text: str, lines: list[str]) -> str:
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + "\n".join(lines) + "\n"


def checked(text: str, wanted: dict[str, Any]) -> str:
    """``text`` if it says what is ``wanted``."""
    try:
        if tomllib.loads(text) == wanted:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise unfamiliar()


def unfamiliar() -> AcespecError:
    return AcespecError(
        "the tenants' file is written in a way that cannot be changed safely; write its tokens as "
        "[[tokens]] blocks and its tenants as [tenants.NAME] tables, or edit it by hand"
    )
