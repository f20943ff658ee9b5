"""The file that names tenants, their quotas and their tokens' hashes.

A token is 256 random bits, so its plain SHA-256 is enough: salts and slow hashes are against guessing, and
there is nothing to guess. Who reads the file learns who may connect, but cannot connect.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from acespec.cloud_verifier.documents import first_fault, read_document
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.errors import AcespecError

TOKEN_PREFIX = "acespec_"  # noqa: S105 - what tokens begin with, so that scanners find one that leaked
TOKEN_BYTES = 32
ID_LENGTH = 12
"""Hexadecimal digits of a hash that name its token to people."""


def not_a_truth(value: object) -> object:
    """Pydantic takes true for a size of one byte."""
    if isinstance(value, bool):
        raise ValueError("a size is wanted, such as 4GiB")
    return value


class QuotaEntry(BaseModel):
    """A tenant's bounds; one left out is none. ``kv_bytes`` may be written as ``"4GiB"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_sessions: Annotated[int, Field(ge=1, strict=True)] | None = None
    tokens_per_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False, strict=True)] | None = None
    kv_bytes: Annotated[ByteSize, Field(ge=1), BeforeValidator(not_a_truth)] | None = None

    def quota(self) -> Quota:
        kv_bytes = None if self.kv_bytes is None else int(self.kv_bytes)
        return Quota(self.max_sessions, self.tokens_per_s, kv_bytes)


class TokenEntry(BaseModel):
    """What is kept of a token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None
    """From then on it is refused."""

    @property
    def id(self) -> str:
        return self.sha256[:ID_LENGTH]


class TenantsFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: QuotaEntry = QuotaEntry()
    """For tenants the file does not name, whom a JWT or a client certificate vouches for."""
    tenants: Mapping[str, QuotaEntry] = {}
    tokens: tuple[TokenEntry, ...] = ()

    @field_validator("tenants")
    @classmethod
    def _names_are_names(cls, tenants: Mapping[str, QuotaEntry]) -> Mapping[str, QuotaEntry]:
        for name in tenants:
            Tenant(name)
        return tenants

    @model_validator(mode="after")
    def _tokens_have_tenants(self) -> Self:
        for token in self.tokens:
            if token.tenant not in self.tenants:
                raise ValueError(f"token {token.id} belongs to {token.tenant!r}, who is not under [tenants]")
        return self

    def tenant(self, name: str) -> Tenant:
        """The tenant ``name``, with its own quota or the default. Raises ``ValueError`` if it is no name."""
        return Tenant(name, self.tenants.get(name, self.default).quota())


def read_tenants(path: Path) -> TenantsFile:
    """The file at ``path``. Raises ``AcespecError``, one line, naming the place that is wrong."""
    return parse_tenants(path, read_document(path))


def parse_tenants(path: Path, document: Mapping[str, Any]) -> TenantsFile:
    try:
        return TenantsFile.model_validate(document)
    except ValidationError as error:
        raise AcespecError(f"{path} is no list of tenants ({first_fault(error)}); mend it there") from error


def new_token() -> str:
    """A fresh token: 256 bits from the operating system."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def token_hash(token: str) -> str:
    """What is kept of ``token``: hexadecimal SHA-256."""
    return hashlib.sha256(token.encode("utf-8")).hexdigest()
