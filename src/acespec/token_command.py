"""The ``acespec token`` commands: tokens that a verifier knows by their hashes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acespec.errors import AcespecError
from acespec.options import FiniteRange

if TYPE_CHECKING:
    from acespec.cloud_verifier.tenants_file import TenantsFile, TokenEntry

FILE = click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The tenants' file, as in 'acespec serve --tokens'.",
)


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that edges show to a verifier.

    The file keeps hashes only. A running verifier reads it again when it changes.
    """


@token.command()
@click.argument("tenant")
@FILE
@click.option("--days", type=click.IntRange(1, 36500), help="How long it is valid.  [default: until revoked]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the token to this file, for its owner alone, instead of printing it.",
)
@click.option("--max-sessions", type=click.IntRange(1), help="A new tenant's quota of sessions at a time.")
@click.option(
    "--tokens-per-s", type=FiniteRange(0.0, min_open=True), help="A new tenant's quota of tokens a second."
)
@click.option("--kv-bytes", metavar="SIZE", help="A new tenant's quota of keys and values, such as 4GiB.")
def new(tenant: str, file: Path, days: int | None, output: Path | None, **bounds: Any) -> None:
    """Make a token for TENANT and print it, this once."""
    from acespec.cloud_verifier.tenants import Tenant
    from acespec.cloud_verifier.tenants_file import new_token, token_hash
    from acespec.cloud_verifier.tokens_text import with_tenant, with_token
    from acespec.private_files import write_whole

    try:
        Tenant(tenant)
    except ValueError as error:
        raise AcespecError(f"{error}, which {tenant!r} is not") from error
    text, content = read(file)
    quota = quota_of(bounds)
    if tenant not in content.tenants:
        text = with_tenant(text, tenant, quota)
    elif quota:
        raise AcespecError(f"{tenant!r} is in {file} already; change the quota there, under [tenants]")
    now = datetime.now(timezone.utc).replace(microsecond=0)
    made = new_token()
    expires = None if days is None else now + timedelta(days=days)
    text = with_token(text, tenant, token_hash(made), now, expires)
    parse(file, text)
    if output is not None:
        write_whole(output, f"{made}\n".encode("ascii"))  # first: a token that nobody got must not be valid
    try:
        write_whole(file, text.encode("utf-8"), replace=True)
    except BaseException:
        if output is not None:
            output.unlink()
        raise
    if output is None:
        click.echo(made)
    until = "until it is revoked" if expires is None else f"until {expires:%Y-%m-%d}"
    click.echo(f"valid {until}; {file} keeps its hash alone, so it cannot be shown again", err=True)


@token.command(name="list")
@FILE
def list_tokens(file: Path) -> None:
    """List the tokens of a file: their ids, tenants and dates."""
    now = datetime.now(timezone.utc)
    for entry in read(existing(file))[1].tokens:
        click.echo(described(entry, now))


def described(entry: TokenEntry, now: datetime) -> str:
    """A token's line in the list."""
    made = "-" if entry.created is None else f"made {entry.created:%Y-%m-%d}"
    ends = ""
    if entry.expires is not None:
        ends = f", {'expired' if entry.expires <= now else 'valid until'} {entry.expires:%Y-%m-%d}"
    return f"{entry.id}  {entry.tenant}  {made}{ends}"


@token.command()
@click.argument("token_id", metavar="ID")
@FILE
def revoke(token_id: str, file: Path) -> None:
    """Take the token ID, as 'acespec token list' shows it, out of a file.

    Streams that stand go on; none is begun or resumed with it any more.
    """
    from acespec.cloud_verifier.tokens_text import without_token
    from acespec.private_files import write_whole

    text, content = read(existing(file))
    entry = entry_of(content, token_id, file)
    text = without_token(text, entry.sha256)
    parse(file, text)
    write_whole(file, text.encode("utf-8"), replace=True)
    click.echo(f"revoked {entry.id} of {entry.tenant}")


def entry_of(content: TenantsFile, token_id: str, file: Path) -> TokenEntry:
    """The token that ``token_id`` begins the hash of."""
    found = [entry for entry in content.tokens if entry.sha256.startswith(token_id)]
    if len(found) != 1:
        number = "several tokens begin" if found else "no token begins"
        raise AcespecError(f"{number} with {token_id!r} in {file}; see: acespec token list --file {file}")
    return found[0]


def existing(file: Path) -> Path:
    if not file.exists():
        raise AcespecError(f"there is no {file}; begin one with: acespec token new TENANT --file {file}")
    return file


def read(file: Path) -> tuple[str, TenantsFile]:
    """The file's text and what it says; an empty one if it is not there yet."""
    if file.suffix != ".toml":
        raise AcespecError(f"{file} must be named *.toml; a tenants' file in YAML is edited by hand")
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, ValueError) as error:
        raise AcespecError(f"cannot read {file} ({error})") from error
    return text, parse(file, text)


def parse(file: Path, text: str) -> TenantsFile:
    from acespec.cloud_verifier.documents import parse_document
    from acespec.cloud_verifier.tenants_file import parse_tenants

    return parse_tenants(file, parse_document(file, text))


def quota_of(bounds: dict[str, Any]) -> dict[str, int | float]:
    """The quota's fields that were given. Raises ``AcespecError`` for a size that is none."""
    from pydantic import ValidationError

    from acespec.cloud_verifier.documents import first_fault
    from acespec.cloud_verifier.tenants_file import QuotaEntry

    given = {name: value for name, value in bounds.items() if value is not None}
    try:
        return QuotaEntry.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        raise AcespecError(f"the quota is out of range ({first_fault(error)})") from error
