"""``acespec token``: tokens are shown once, files keep hashes, and what people wrote in them stays."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.authentication import find_token
from acespec.cloud_verifier.documents import parse_document
from acespec.cloud_verifier.tenants_file import TokenEntry, parse_tenants, read_tenants, token_hash
from acespec.cloud_verifier.tokens_text import with_tenant, with_token, without_token
from acespec.errors import AcespecError
from acespec.token_command import described, token

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
HAND_WRITTEN = """\
# who may connect
[default]
max_sessions = 2

[tenants.acme]   # pays
tokens_per_s = 100.0

[[tokens]]
tenant = "acme"  # the first
sha256 = "{}"

# the rest is Zoë's
[tenants."Zoë & co"]
kv_bytes = "1GiB"
""".format("a" * 64)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(token, [str(argument) for argument in arguments])


def made(file: Path, *arguments: object) -> str:
    result = run("new", *arguments, "--file", file)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_a_token_is_printed_once_and_its_hash_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    first, second = made(file, "acme", "--max-sessions", 4, "--kv-bytes", "2MiB"), made(file, "acme")
    assert first != second
    assert len(first) == len("acespec_") + 43  # 256 bits in base64url
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = read_tenants(file)
    assert [entry.sha256 for entry in content.tokens] == [token_hash(first), token_hash(second)]
    quota = content.tenant("acme").quota
    assert (quota.max_sessions, quota.kv_bytes, quota.tokens_per_s) == (4, 2 * 2**20, None)


def test_a_token_can_go_to_a_file_of_its_owner(tmp_path: Path) -> None:
    file, output = tmp_path / "tenants.toml", tmp_path / "edge.token"
    assert made(file, "acme", "--output", output) == ""
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert find_token(read_tenants(file).tokens, output.read_text().strip()) is not None
    result = run("new", "acme", "--file", file, "--output", output)
    assert "is there already" in str(result.exception)
    assert len(read_tenants(file).tokens) == 1, "a token nobody gets is not added"


@pytest.mark.parametrize("unwritable", ["output", "file"])
def test_a_token_is_valid_only_where_it_was_handed_over(unwritable: str, tmp_path: Path) -> None:
    places = {"output": tmp_path / "edge.token", "file": tmp_path / "tenants.toml"}
    places[unwritable] = tmp_path / "none" / places[unwritable].name
    result = run("new", "acme", "--file", places["file"], "--output", places["output"])
    assert f"cannot write {places[unwritable]}" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_days_are_days_from_now(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    made(file, "acme", "--days", 3)
    (entry,) = read_tenants(file).tokens
    assert entry.created is not None
    assert entry.expires == entry.created + timedelta(days=3)
    assert abs(entry.created - datetime.now(timezone.utc)) < timedelta(minutes=5)


def test_list_and_revoke(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(HAND_WRITTEN)
    file.chmod(0o640)
    secret = made(file, "Zoë & co")
    listed = run("list", "--file", file).output
    assert listed.splitlines()[0].startswith("a" * 12 + "  acme")
    assert token_hash(secret)[:12] in listed
    assert secret not in listed
    result = run("revoke", token_hash(secret)[:8], "--file", file)
    assert result.output == f"revoked {token_hash(secret)[:12]} of Zoë & co\n"
    assert file.read_text() == HAND_WRITTEN
    assert stat.S_IMODE(file.stat().st_mode) == 0o640, "a group that may read it may go on"
    run("revoke", "a" * 12, "--file", file)
    assert read_tenants(file).tokens == ()
    assert "# the rest is Zoë's" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "acme", "--max-sessions", "3"), "is in .* already; change the quota there"),
        (("new", "new", "--kv-bytes", "3 potatoes"), "the quota is out of range"),
        (
            ("new", "tab\there"),
            r"^a tenant's name is 1 to 128 printable characters, which 'tab\\there' is not$",
        ),
        (("new", ""), "^a tenant's name is 1 to 128 printable characters, which '' is not$"),
        (("revoke", "bb"), "no token begins with 'bb'"),
    ],
)
def test_errors_are_one_line_and_leave_the_file(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(HAND_WRITTEN)
    result = run(*arguments, "--file", file)
    assert isinstance(result.exception, AcespecError)
    with pytest.raises(AcespecError, match=message):
        raise result.exception
    assert "\n" not in str(result.exception)
    assert file.read_text() == HAND_WRITTEN


@pytest.mark.parametrize("words", [("list",), ("revoke", "aa")])
def test_a_file_that_is_not_there_is_no_empty_one(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "none.toml"
    result = run(*words, "--file", file)
    assert isinstance(result.exception, AcespecError)
    assert (
        str(result.exception) == f"there is no {file}; begin one with: acespec token new TENANT --file {file}"
    )


@pytest.mark.parametrize(
    ("expires", "end"),
    [
        (None, ""),
        (NOW, ", expired 2030-01-01"),
        (NOW + timedelta(seconds=1), ", valid until 2030-01-01"),
    ],
)
def test_an_expired_token_is_listed_as_such(expires: datetime | None, end: str) -> None:
    entry = TokenEntry(tenant="acme", sha256="a" * 64, expires=expires)
    assert described(entry, NOW) == "aaaaaaaaaaaa  acme  -" + end


def test_an_ambiguous_id_revokes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    text = with_token(HAND_WRITTEN, "acme", "a" * 63 + "b", NOW, None)
    file.write_text(text)
    assert "several tokens begin with 'aaaa'" in str(run("revoke", "aaaa", "--file", file).exception)
    assert file.read_text() == text


@pytest.mark.parametrize(
    "tokens",
    ['tokens = [{tenant = "acme", sha256 = "%s"}]\n', '[[ tokens ]]\ntenant = "acme"\nsha256 = "%s"\n'],
)
def test_a_file_written_otherwise_is_left_alone(tokens: str) -> None:
    text = tokens % ("a" * 64) + "[tenants.acme]\n"
    assert parse_document(Path("x.toml"), text)["tokens"]
    with pytest.raises(AcespecError, match="edit it by hand"):
        without_token(text, "a" * 64)


printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)


@given(st.lists(printable, min_size=1, max_size=4, unique=True), st.data())
def test_adding_and_taking_out_give_the_text_back(names: list[str], data: st.DataObject) -> None:
    texts = [HAND_WRITTEN]
    for name in names:
        if name not in ("acme", "Zoë & co"):
            texts[0] = with_tenant(texts[0], name, {"max_sessions": 1})
    hashes: list[str] = []
    for number, name in enumerate(names):
        hashes.append(f"{number:064x}")
        texts.append(with_token(texts[-1], name, hashes[-1], NOW, data.draw(st.sampled_from([None, NOW]))))
    content = parse_tenants(Path("x.toml"), parse_document(Path("x.toml"), texts[-1]))
    assert [entry.tenant for entry in content.tokens] == ["acme", *names]
    text = texts[-1]
    for sha256 in data.draw(st.permutations(hashes)):
        text = without_token(text, sha256)
    assert text == texts[0]
