"""The package is whole however it is installed; ``make packages`` builds the archives looked into here."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from conftest import DEVICE_MODULES
from source_imports import imported_packages

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "cloud_verifier", "edge_runtime", "export", "models", "speculation", "wire")
EXTRA_OF = {
    "bench": "bench",
    "cloud_verifier": "tracing",  # `cloud`, and OpenTelemetry, which it does without
    "edge_runtime": "edge",
    "export": "export",
    "models": "cloud",
    "speculation": None,
    "wire": "edge",
}
OPTIMUM_FILE = "optimum/commands/register/acespec.py"
"""A sub-command of Optimum's, in its namespace package; a second file could overwrite one of Optimum's."""
DIST = os.environ.get("ACESPEC_DIST")

in_archives = pytest.mark.skipif(DIST is None, reason="make packages builds the archives and runs this")


def package_files() -> set[str]:
    """What the package consists of, as paths below ``acespec/``, read off the source tree."""
    files = {path.name for pattern in ("*.py", "py.typed") for path in (ROOT / "src/acespec").glob(pattern)}
    for folder in FOLDERS:
        for suffix in (".py", ".pyi", ".proto", ".toml"):
            files |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(f"*{suffix}")}
    return files


def archive(pattern: str) -> Path:
    assert DIST is not None
    (path,) = Path(DIST).glob(pattern)
    return path


def test_every_folder_is_linked_into_the_package() -> None:
    for folder in FOLDERS:
        link = ROOT / "src/acespec" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / folder
        assert (link / "__init__.py").is_file()


def test_an_installed_package_has_its_typing_marker_and_protocol() -> None:
    package = importlib.resources.files("acespec")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("wire").joinpath("verifier.proto").is_file()
    assert package.joinpath("wire").joinpath("verifier_pb2.pyi").is_file()


def declared(extra: str | None) -> set[str]:
    """Normalised names of the distributions that acespec, or its ``extra``, asks for by itself."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names: set[str] = set()
    for requirement in [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]:
        match = re.match(r"(?P<name>[\w-]+)(\[(?P<extras>[\w,]+)\])?", requirement)
        assert match
        if match["name"] == "acespec":
            names |= {name for inner in match["extras"].split(",") for name in declared(inner)}
        names.add(match["name"].lower())
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_third_party_import_is_a_declared_dependency_of_its_extra(folder: str) -> None:
    """What is installed by luck, because something else needs it today, may be gone tomorrow."""
    pytest.importorskip("torch", reason="only the edge extra is installed")
    distributions = importlib.metadata.packages_distributions()
    asked = declared(EXTRA_OF[folder])
    for path in (ROOT / folder).rglob("*.py"):
        modules = imported_packages(path.read_text(encoding="utf-8"))
        for module in modules - sys.stdlib_module_names - DEVICE_MODULES - {"acespec"}:
            offered_by = {name.lower().replace("_", "-") for name in distributions.get(module, [])}
            assert offered_by & asked, f"{path} imports {module} ({offered_by or 'not installed'})"


@in_archives
def test_the_wheel_holds_every_file_of_the_package_and_no_other_package() -> None:
    with zipfile.ZipFile(archive("*.whl")) as wheel:
        names = [PurePosixPath(name) for name in wheel.namelist()]
    top = {name.parts[0] for name in names if not name.parts[0].endswith(".dist-info")}
    assert top == {"acespec", "optimum"}
    assert [str(name) for name in names if name.parts[0] == "optimum"] == [OPTIMUM_FILE]
    assert {
        name.relative_to("acespec").as_posix() for name in names if name.parts[0] == "acespec"
    } == package_files()
    assert any(name.match("*.dist-info/licenses/LICENSE") for name in names)


@in_archives
def test_the_sdist_holds_files_where_the_sources_hold_links() -> None:
    with tarfile.open(archive("*.tar.gz")) as sdist:
        members = {
            PurePosixPath(*PurePosixPath(member.name).parts[1:]): member for member in sdist.getmembers()
        }
    for name in package_files():
        assert members[PurePosixPath("src/acespec") / name].isfile(), name
    in_optimum = {
        str(name) for name, member in members.items() if "optimum" in name.parts and member.isfile()
    }
    assert in_optimum == {f"src/{OPTIMUM_FILE}"}


@in_archives
def test_the_wheel_runs_in_an_environment_without_the_sources(tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment/bin"

    def run(program: str, *arguments: str | Path) -> str:
        command = [programs / program, *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("pip", "install", "--quiet", "-c", ROOT / "requirements/dev.txt", archive("*.whl"))
    assert "Lossless edge-cloud speculative decoding" in run("acespec", "--help")
    assert run("python", "-c", "import acespec.speculation as s; print(s.__file__)").startswith(str(tmp_path))
    for folder in FOLDERS:
        assert run("python", "-c", f"import importlib.util as u; print(u.find_spec({folder!r}))") == "None\n"
