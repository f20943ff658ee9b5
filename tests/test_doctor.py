"""``acespec doctor``: what it decides of given facts, and that nothing broken stops it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acespec import doctor_command, probes
from acespec.cli import EXTRAS
from acespec.doctor import (
    BASE_MODULES,
    TENSORRT,
    Facts,
    Provider,
    Verdict,
    can_run,
    default_role,
    judge,
    try_provider,
)
from acespec.machine import Machine, describe_machine, free_bytes
from acespec.probes import NOT_INSTALLED, Library, run_probe, try_import, why_not_loaded

CPU = Provider("CPUExecutionProvider", True, "")
CPUINFO_X86 = "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx2 avx512_vnni amx_int8\n"
CPUINFO_ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"
TEGRA_RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"


def facts(broken: dict[str, str] | None = None, **changes: Any) -> Facts:
    """A machine where everything works but what ``broken`` (module -> fault) and ``changes`` say."""
    modules = [*BASE_MODULES, *(module for extra in EXTRAS.values() for module in extra)]
    faults = broken or {}
    healthy = Facts(
        machine=Machine("3.12.3", "python3", "Linux", "A Processor", 8, {}, None, None, None),
        cache_folder="/home/somebody/.cache/acespec",
        cache_free_bytes=None,
        libraries={
            module: Library(module, "" if module in faults else "1.0", faults.get(module, ""))
            for module in modules
        },
        onnx_runtime_builds=["onnxruntime 1.23.2"],
        providers=[CPU],
        tensorrt={runtime: Library(runtime, "10.16.0", "") for runtime in TENSORRT},
        cuda=Library("cuda", "8.7", ""),
        torch_devices=[],
    )
    return dataclasses.replace(healthy, **changes)


def verdict(found: Facts, role: str) -> Verdict:
    (answer,) = [each for each in judge(found) if each.role == role]
    return answer


def test_where_all_works_every_role_runs() -> None:
    assert all(each.runs for each in judge(facts()))
    assert all(can_run(role, judge(facts())) for role in ("edge", "export", "cloud"))


EDGE = {"edge on onnxruntime", "edge on tensorrt", "edge on tensorrt-rtx"}


@pytest.mark.parametrize(
    ("module", "hindered"),
    [
        ("onnxruntime", {"edge on onnxruntime", "export"}),
        ("tokenizers", {*EDGE, "export", "cloud"}),
        ("numpy", {*EDGE, "export", "cloud"}),
        ("torch", {"export", "cloud"}),
        ("onnx", {"export"}),
    ],
)
def test_a_missing_library_hinders_the_roles_that_need_it(module: str, hindered: set[str]) -> None:
    lacking = {each.role: each.faults for each in judge(facts({module: NOT_INSTALLED})) if not each.runs}
    assert lacking.keys() == hindered
    for role, (fault,) in lacking.items():
        assert fault.what == f"{module} is not installed"
        assert fault.remedy == f"in a clone of acespec: pip install '.[{role.split(' ')[0]}]'"


def test_what_is_absent_is_one_fault_with_one_command() -> None:
    absent = dict.fromkeys(("torch", "yaml", "jwt", "google"), NOT_INSTALLED)
    (fault,) = verdict(facts(absent), "cloud").faults
    assert fault.what == "torch, jwt, yaml and google are not installed"
    assert fault.remedy == "in a clone of acespec: pip install '.[cloud]'"


def test_a_broken_library_is_reinstalled() -> None:
    (fault,) = verdict(facts({"grpc": "it ended the process by SIGSEGV"}), "edge on onnxruntime").faults
    assert fault.what == "grpc cannot be imported: it ended the process by SIGSEGV"
    assert fault.remedy == "pip install --force-reinstall grpcio"


def test_two_builds_of_onnx_runtime_are_a_fault() -> None:
    found = facts(onnx_runtime_builds=["onnxruntime 1.23.2", "onnxruntime-gpu 1.23.0"])
    (fault,) = verdict(found, "edge on onnxruntime").faults
    assert fault.what == "onnxruntime 1.23.2 and onnxruntime-gpu 1.23.0 are installed over each other"
    assert fault.remedy == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    assert verdict(found, "edge on tensorrt").runs


def test_a_provider_that_is_listed_but_fails_is_told_and_hinders_nothing() -> None:
    cuda = Provider("CUDAExecutionProvider", False, "libcudnn.so.9 is missing")
    answer = verdict(facts(providers=[cuda, CPU]), "edge on onnxruntime")
    assert answer.runs
    (note,) = answer.notes
    assert note.startswith("CUDAExecutionProvider is listed but does not run (libcudnn.so.9 is missing)")
    assert "onnxruntime-gpu[cuda,cudnn]" in note


def test_without_the_cpu_provider_onnx_runtime_is_of_no_use() -> None:
    broken = [Provider("CPUExecutionProvider", False, "illegal instruction")]
    (fault,) = verdict(facts(providers=broken), "edge on onnxruntime").faults
    assert fault.what == "CPUExecutionProvider does not run: illegal instruction"
    assert not verdict(facts(providers=[]), "edge on onnxruntime").runs


def test_tensorrt_alone_makes_an_edge() -> None:
    found = facts({"onnxruntime": NOT_INSTALLED}, providers=[])
    assert verdict(found, "edge on tensorrt").runs
    assert can_run("edge", judge(found))
    assert "acespec engine build BUNDLE" in verdict(found, "edge on tensorrt").notes[0]


def test_tensorrts_own_remedy_is_shown() -> None:
    absent = Library("tensorrt", "", "tensorrt cannot be imported (why); apt-get install it")
    found = facts(tensorrt={"tensorrt": absent, "tensorrt-rtx": Library("tensorrt-rtx", "1.7", "")})
    (fault,) = verdict(found, "edge on tensorrt").faults
    assert (fault.what, fault.remedy) == ("tensorrt cannot be imported (why)", "apt-get install it")
    assert verdict(found, "edge on tensorrt-rtx").runs


def test_python_310_is_enough_for_the_edge_alone() -> None:
    found = facts(machine=dataclasses.replace(facts().machine, python="3.10.12"))
    assert {each.role for each in judge(found) if not each.runs} == {"export", "cloud"}


@pytest.mark.parametrize(
    ("broken", "role"),
    [({}, "cloud"), ({"torch": NOT_INSTALLED}, "edge"), ({"torch": "it ended the process"}, "cloud")],
)
def test_the_role_is_guessed_from_torch(broken: dict[str, str], role: str) -> None:
    assert default_role(facts(broken)) == role


def run(monkeypatch: pytest.MonkeyPatch, found: Facts, *words: str) -> Result:
    monkeypatch.setattr(doctor_command, "gather_facts", lambda: found)
    return CliRunner().invoke(doctor_command.doctor, list(words))


@pytest.mark.parametrize(
    ("words", "status"),
    [((), 1), (("--role", "cloud"), 1), (("--role", "export"), 1), (("--role", "edge"), 0)],
)
def test_the_exit_status_is_the_roles(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int
) -> None:
    found = facts({"transformers": NOT_INSTALLED})
    result = run(monkeypatch, found, *words)
    assert result.exit_code == status
    assert "transformers is not installed" in result.output
    shown = run(monkeypatch, found, "--json", *words)
    assert shown.exit_code == status
    assert json.loads(shown.output)["runs"] == (status == 0)


def test_json_carries_every_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json.loads(run(monkeypatch, facts(), "--json").output)
    assert {field.name for field in dataclasses.fields(Facts)} | {"role", "runs", "roles", "acespec"} == set(
        shown
    )
    assert [each["role"] for each in shown["roles"]] == [each.role for each in judge(facts())]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import os; os.abort()", "it ended the process by SIGABRT"),
        ("import os; os._exit(3)", "it ended the process with status 3"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ],
)
def test_a_probe_survives_its_code(code: str, fault: str) -> None:
    answer = run_probe(code, timeout_s=1.0 if "sleep" in code else 60.0)
    assert answer.value is None
    assert answer.fault == fault


def test_a_probe_finds_the_answer_among_noise() -> None:
    answer = run_probe("import sys; print('noise'); print('more', file=sys.stderr); answer = [1]")
    assert (answer.value, answer.fault, answer.messages) == ([1], "", "more\n")


def test_a_probe_looks_where_its_caller_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acespec_probe_target.py").write_text("__version__ = '7.1'\n")
    assert try_import("acespec_probe_target").fault == NOT_INSTALLED
    monkeypatch.syspath_prepend(tmp_path)
    assert try_import("acespec_probe_target") == Library("acespec_probe_target", "7.1", "")


def test_a_library_without_a_version_of_its_own_has_its_distributions() -> None:
    assert try_import("click").version
    assert try_import("onnxruntime").works


def test_a_library_that_tells_no_version_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acespec_probe_target.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert try_import("acespec_probe_target") == Library("acespec_probe_target", "version unknown", "")
    assert try_import("json").works


def test_a_library_that_needs_another_is_broken_and_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acespec_probe_target.py").write_text("import nonesuch\n")
    monkeypatch.syspath_prepend(tmp_path)
    fault = try_import("acespec_probe_target").fault
    assert fault == "ModuleNotFoundError: No module named 'nonesuch'"


def test_the_library_that_onnx_runtime_could_not_load_is_read_off_its_log() -> None:
    log = "[E:onnxruntime] FAIL : Failed to load library libx.so with error: libcudnn.so.9: cannot open\n[m"
    assert why_not_loaded(log) == "libcudnn.so.9: cannot open"
    assert why_not_loaded("all is well") == ""


def test_a_trial_that_ends_its_process_is_a_provider_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("import os; os.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    trial = try_provider("CUDAExecutionProvider")
    assert not trial.runs
    assert trial.reason.startswith("it ended the process by SIGABRT")


def test_both_builds_of_onnx_runtime_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        info = tmp_path / f"{name.replace('-', '_')}-1.23.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.23.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert probes.onnx_runtime_builds() == ["onnxruntime 1.23.0", "onnxruntime-gpu 1.23.0"]


def test_a_jetson_is_known_by_its_release(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "etc/nv_tegra_release").write_text(TEGRA_RELEASE)
    (tmp_path / "proc/device-tree/model").write_text("NVIDIA Jetson AGX Orin\0")
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO_ARM)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       64000000 kB\nMemAvailable:   32000000 kB\n")
    machine = describe_machine(12, tmp_path)
    assert machine.jetson is not None
    assert dataclasses.astuple(machine.jetson) == ("NVIDIA Jetson AGX Orin", "36.4.3", "6")
    assert machine.cpu_features == {"dotprod": True, "i8mm": False, "bf16": False, "SVE": False}
    assert (machine.memory_bytes, machine.available_bytes) == (65_536_000_000, 32_768_000_000)


def test_a_pc_has_its_own_features_and_is_no_jetson(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO_X86)
    machine = describe_machine(2, tmp_path)
    assert machine.processor == "A Processor"
    assert [name for name, has in machine.cpu_features.items() if has] == ["AVX2", "AVX512-VNNI", "AMX-INT8"]
    assert (machine.jetson, machine.memory_bytes) == (None, None)


def test_a_system_that_tells_nothing_is_described_all_the_same(tmp_path: Path) -> None:
    assert describe_machine(1, tmp_path).cpu_features == {}
    assert free_bytes(tmp_path / "not/yet/there") == free_bytes(tmp_path)


BREAKAGES = {
    "numpy": "raise ImportError('numpy: built for another Python')",
    "onnxruntime": "import os; os.abort()",
    "torch": "import os; os._exit(7)",
    "transformers": "raise KeyboardInterrupt",
    "rich": "this is no Python",
    "pydantic": "raise RuntimeError('two\\nlines')",
    "tensorrt": "",
    "tensorrt_rtx_bindings": "raise OSError('libnvinfer.so.10: no such file')",
}


def test_nothing_broken_stops_it(tmp_path: Path) -> None:
    for module, code in BREAKAGES.items():
        (tmp_path / f"{module}.py").write_text(code)
    result = subprocess.run(
        [sys.executable, "-m", "acespec", "doctor", "--json", "--role", "edge"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert result.stderr == ""
    shown = json.loads(result.stdout)
    faults = {name: library["fault"] for name, library in shown["libraries"].items()}
    assert faults["numpy"] == "ImportError: numpy: built for another Python"
    assert faults["onnxruntime"] == "it ended the process by SIGABRT"
    assert faults["torch"] == "it ended the process with status 7"
    assert faults["transformers"] == "KeyboardInterrupt: "
    assert faults["rich"].startswith("SyntaxError")
    assert faults["pydantic"] == "RuntimeError: two lines"
    assert faults["tokenizers"] == ""
    assert not any(each["runs"] for each in shown["roles"])
    assert shown["cache_folder"] == "" or Path(shown["cache_folder"]).is_absolute()
