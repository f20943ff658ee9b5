"""Configuration files, in TOML or YAML by their name's ending, and how values are written there."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import tomllib  # type: ignore[import-not-found]  # Python 3.10 lacks it; the verifier needs 3.11
import yaml
from pydantic import ValidationError

from acespec.errors import AcespecError


def read_document(path: Path) -> dict[str, Any]:
    """The table in the file ``path``. Raises ``AcespecError``, one line, if there is none."""
    try:
        return parse_document(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AcespecError(f"cannot read {path} ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise AcespecError(f"{path} is no text in UTF-8") from error


def parse_document(path: Path, text: str) -> dict[str, Any]:
    """The table in ``text``, the content of ``path``. Raises ``AcespecError``, one line, if it is none."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise AcespecError(f"{path} must be named *.toml, *.yaml or *.yml: the ending tells the format")
    try:
        found: object = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise AcespecError(f"{path} is no {path.suffix[1:].upper()} ({reason}); mend it there") from error
    if found is None:  # an empty YAML file
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise AcespecError(f"{path} must hold names with values, such as port: 50051")
    return found


def toml_value(value: object) -> str:
    """``value`` as it stands behind a key in TOML; what is neither number, truth nor time, as its text."""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return json.dumps(str(value), ensure_ascii=False)  # TOML's basic strings are JSON's, for printable text


def first_fault(error: ValidationError) -> str:
    """Where a document breaks its schema first, and how, in one line."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = " ".join(str(first["msg"]).split()).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
