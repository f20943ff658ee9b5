"""What this machine can run, what is missing for each role, and the command that mends it.

Deciding is apart from probing: `judge` is a pure function of `Facts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from acespec.cli import EXTRAS
from acespec.machine import Machine, describe_machine, free_bytes
from acespec.probes import NOT_INSTALLED, Library, onnx_runtime_builds, run_probe, try_import, why_not_loaded

CPU = "CPUExecutionProvider"
CLOUD_SERVICE = "AzureExecutionProvider"
"""Calls a service; it never runs a graph of its own, in any build that lists it."""
BASE_MODULES = ("numpy", "pydantic", "platformdirs", "rich")
_OF_BOTH_SIDES = tuple(module for module in EXTRAS["edge"] if module != "onnxruntime")
NEEDS = {
    "edge": EXTRAS["edge"],
    "cloud": (*EXTRAS["cloud"], *_OF_BOTH_SIDES),
    "export": (*EXTRAS["export"], *EXTRAS["cloud"], *EXTRAS["edge"]),
}
"""Modules of a role, beyond `BASE_MODULES`. `EXTRAS` has each once, under the first extra that brings it."""
TENSORRT = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT for RTX"}
IMPORTED_AS = {"google": "google.protobuf"}
"""Modules of `EXTRAS` that are only a namespace."""
DISTRIBUTIONS = {"grpc": "grpcio", "google": "protobuf", "grpc_health": "grpcio-health-checking"}
"""What brings a module, where it is called otherwise."""
NEWER_PYTHON = (3, 11)
"""What export and verifier need; the edge runs on 3.10."""
ROLES = ("edge", "export", "cloud")


@dataclass(frozen=True)
class Provider:
    """A listed provider of ONNX Runtime and how it did."""

    name: str
    runs: bool
    reason: str


@dataclass(frozen=True)
class Facts:
    """Everything that was found out."""

    machine: Machine
    cache_folder: str
    cache_free_bytes: int | None
    libraries: Mapping[str, Library]
    """By module."""
    onnx_runtime_builds: Sequence[str]
    providers: Sequence[Provider]
    tensorrt: Mapping[str, Library]
    """By runtime, `TENSORRT`."""
    cuda: Library
    """Its version is the device's compute capability."""
    torch_devices: Sequence[str]
    """Names of the GPUs that PyTorch sees."""


@dataclass(frozen=True)
class Fault:
    """Something missing or wrong."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Verdict:
    """Whether a role can be run here."""

    role: str
    """One of `ROLES`, for the edge followed by the runtime."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()
    """What does not hinder it, but is worth knowing."""

    @property
    def runs(self) -> bool:
        return not self.faults


def gather_facts() -> Facts:
    """Find everything out. Takes as long as importing every library once, each in a process of its own."""
    modules = dict.fromkeys((*BASE_MODULES, *(module for extra in EXTRAS.values() for module in extra)))
    with ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 2)) as pool:
        libraries = {module: pool.submit(try_import, IMPORTED_AS.get(module, module)) for module in modules}
        tensorrt = {runtime: pool.submit(try_tensorrt, runtime) for runtime in TENSORRT}
        cuda = pool.submit(try_cuda)
        providers = pool.submit(try_providers)
        devices = pool.submit(torch_devices)
        folder = pool.submit(find_cache)
        cache = folder.result()
        return Facts(
            machine=describe_machine(os.cpu_count() or 1),
            cache_folder=cache,
            cache_free_bytes=free_bytes(Path(cache)) if cache else None,
            libraries={module: future.result() for module, future in libraries.items()},
            onnx_runtime_builds=onnx_runtime_builds(),
            providers=providers.result(),
            tensorrt={runtime: future.result() for runtime, future in tensorrt.items()},
            cuda=cuda.result(),
            torch_devices=devices.result(),
        )


def try_tensorrt(runtime: str) -> Library:
    """The TensorRT module, held to what the engine needs of it."""
    answer = run_probe(
        "from acespec.edge_runtime.trt_module import load_tensorrt\n"
        f"answer = load_tensorrt({runtime!r}).__version__\n"
    )
    return Library(runtime, answer.value or "", answer.fault)


def try_cuda() -> Library:
    """The CUDA runtime through ``cuda-python``, and a device to run on."""
    answer = run_probe(
        "from acespec.edge_runtime.cuda import load_cuda\nanswer = load_cuda().compute_capability()\n"
    )
    return Library("cuda", answer.value or "", answer.fault)


def try_providers() -> list[Provider]:
    """Every listed provider's trial, each in a process of its own."""
    listed = run_probe("import onnxruntime\nanswer = onnxruntime.get_available_providers()\n")
    return [try_provider(name) for name in listed.value or () if name != CLOUD_SERVICE]


def try_provider(name: str) -> Provider:
    """A provider's trial. Which library could not be loaded is in ONNX Runtime's log alone."""
    answer = run_probe(
        "import dataclasses\n"
        "from acespec.edge_runtime.providers import try_provider\n"
        f"answer = dataclasses.asdict(try_provider({name!r}))\n"
    )
    if answer.value is None:
        return Provider(name, False, answer.fault)
    reason = why_not_loaded(answer.messages) or answer.value["reason"]
    return Provider(name, answer.value["runs"], "" if answer.value["runs"] else reason)


def torch_devices() -> list[str]:
    """Names of the GPUs that PyTorch sees; none without PyTorch."""
    answer = run_probe(
        "import torch\nanswer = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]\n"
    )
    return answer.value or []


def find_cache() -> str:
    """The cache folder; nothing if it cannot be told."""
    answer = run_probe("from acespec.models.cache import cache_folder\nanswer = str(cache_folder())\n")
    return answer.value or ""


def judge(facts: Facts) -> list[Verdict]:
    """What each role lacks."""
    return [
        _edge_on_onnx_runtime(facts),
        *(_edge_on_tensorrt(facts, runtime) for runtime in TENSORRT),
        Verdict("export", (*_missing(facts, "export"), *_two_builds(facts), *_old_python(facts))),
        Verdict("cloud", (*_missing(facts, "cloud"), *_old_python(facts)), _cloud_notes(facts)),
    ]


def default_role(facts: Facts) -> str:
    """The verifier where PyTorch is installed, else the edge."""
    torch = facts.libraries.get("torch")
    return "cloud" if torch is not None and torch.fault != NOT_INSTALLED else "edge"


def can_run(role: str, verdicts: Iterable[Verdict]) -> bool:
    """Whether ``role`` runs here in at least one way."""
    return any(verdict.runs for verdict in verdicts if verdict.role.split(" ")[0] == role)


def _edge_on_onnx_runtime(facts: Facts) -> Verdict:
    faults = [*_missing(facts, "edge"), *_two_builds(facts)]
    working = facts.libraries["onnxruntime"].works
    cpu = next((provider for provider in facts.providers if provider.name == CPU), None)
    if working and (cpu is None or not cpu.runs):
        reason = cpu.reason if cpu is not None else "it is not listed"
        faults.append(Fault(f"{CPU} does not run: {reason}", "pip install --force-reinstall onnxruntime"))
    notes = tuple(
        f"{provider.name} is listed but does not run ({provider.reason}); {_provider_remedy(provider.name)}"
        for provider in facts.providers
        if not provider.runs and provider.name != CPU
    )
    return Verdict("edge on onnxruntime", tuple(faults), notes)


def _edge_on_tensorrt(facts: Facts, runtime: str) -> Verdict:
    """TensorRT needs all of the edge but ONNX Runtime. Its faults and CUDA's bring their own remedies."""
    faults = [
        *_missing(facts, "edge", without=("onnxruntime",)),
        *(
            Fault(library.cause, library.remedy)
            for library in (facts.tensorrt[runtime], facts.cuda)
            if not library.works
        ),
    ]
    notes = () if faults else ("engines are built with: acespec engine build BUNDLE",)
    return Verdict(f"edge on {runtime}", tuple(faults), notes)


def _missing(facts: Facts, role: str, without: Sequence[str] = ()) -> list[Fault]:
    """Libraries of ``role`` and of the package itself that are broken, one by one, or absent, together."""
    modules = [module for module in (*BASE_MODULES, *NEEDS[role]) if module not in without]
    wanted = {module: facts.libraries[module] for module in modules}
    absent = [library.name for library in wanted.values() if library.fault == NOT_INSTALLED]
    faults = []
    if absent:
        are = "is" if len(absent) == 1 else "are"
        faults.append(Fault(f"{listed(absent)} {are} not installed", install_command(role)))
    for module, library in wanted.items():
        if not library.works and library.fault != NOT_INSTALLED:
            distribution = DISTRIBUTIONS.get(module, module.replace("_", "-"))
            remedy = f"pip install --force-reinstall {distribution}"
            faults.append(Fault(f"{library.name} cannot be imported: {library.fault}", remedy))
    return faults


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def install_command(extra: str) -> str:
    """The command that brings an extra."""
    return f"in a clone of acespec: pip install '.[{extra}]'"


def _two_builds(facts: Facts) -> list[Fault]:
    if len(facts.onnx_runtime_builds) < 2:
        return []
    names = [build.split(" ")[0] for build in facts.onnx_runtime_builds]
    wanted = next((name for name in names if name != "onnxruntime"), names[0])
    return [
        Fault(
            f"{' and '.join(facts.onnx_runtime_builds)} are installed over each other",
            f"pip uninstall -y {' '.join(names)} && pip install {wanted}",
        )
    ]


def _old_python(facts: Facts) -> list[Fault]:
    version = tuple(int(part) for part in facts.machine.python.split(".")[:2])
    if version >= NEWER_PYTHON:
        return []
    needed = ".".join(map(str, NEWER_PYTHON))
    return [
        Fault(
            f"Python is {facts.machine.python}", f"make a virtual environment with Python {needed} or later"
        )
    ]


def _cloud_notes(facts: Facts) -> tuple[str, ...]:
    if facts.torch_devices:
        return (f"PyTorch runs on {', '.join(facts.torch_devices)}",)
    return ("PyTorch sees no GPU: models run on the CPU",) if facts.libraries["torch"].works else ()


def _provider_remedy(name: str) -> str:
    if name == "CUDAExecutionProvider":
        return "it wants its CUDA and cuDNN: pip install 'onnxruntime-gpu[cuda,cudnn]', with the GPU's driver"
    if name == "TensorrtExecutionProvider":
        return "it wants CUDA, cuDNN and TensorRT of the versions it was built with"
    return "use another with --runtime"
