"""What machine this is: processor, memory, disk, the Jetson's release. Reads files; no import can fail."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
X86_FEATURES = {
    "avx2": "AVX2",
    "avx512_vnni": "AVX512-VNNI",
    "avx_vnni": "AVX-VNNI",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
}
ARM_FEATURES = {"asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "SVE"}
"""The kernel's names for the instructions that matrix products are made of, and the usual ones."""
VNNI_FEATURES = ("AVX512-VNNI", "AVX-VNNI", "AMX-INT8")
"""Of these one at least adds products of bytes up in 32 bits."""

JETPACK_OF_L4T = {32: "4", 34: "5", 35: "5", 36: "6", 38: "7", 39: "7"}
"""JetPack's major version by Jetson Linux's."""


@dataclass(frozen=True)
class Jetson:
    """An NVIDIA Jetson, as its system describes it."""

    model: str
    linux: str
    """Jetson Linux (L4T), such as ``36.4.3``."""
    jetpack: str
    """JetPack's major version; ``?`` for a release that is not known."""


@dataclass(frozen=True)
class Machine:
    """The machine this runs on."""

    python: str
    executable: str
    system: str
    processor: str
    cores: int
    cpu_features: dict[str, bool]
    """Instructions that matter to speed, and whether the processor has them. Empty where that is unknown."""
    memory_bytes: int | None
    available_bytes: int | None
    jetson: Jetson | None


def describe_machine(cores: int, root: Path = Path("/")) -> Machine:
    """This machine, read from the files below ``root``. What cannot be read is left open."""
    cpu = _read(root / "proc/cpuinfo")
    memory = memory_of(_read(root / "proc/meminfo"))
    return Machine(
        python=platform.python_version(),
        executable=sys.executable,
        system=platform.platform(),
        processor=processor_name(cpu),
        cores=cores,
        cpu_features=cpu_features(cpu),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        jetson=jetson_of(_read(root / "etc/nv_tegra_release"), _read(root / "proc/device-tree/model")),
    )


def processor_name(cpuinfo: str) -> str:
    """The model of the first processor, where ``/proc/cpuinfo`` names one, else what the system calls it."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return (match[1].strip() if match else "") or platform.processor() or platform.machine()


def this_processor() -> str:
    """The processor this runs on."""
    return processor_name(_read(CPUINFO))


def cpu_features(cpuinfo: str) -> dict[str, bool]:
    """The features that matter of the architecture that ``/proc/cpuinfo`` describes."""
    match = re.search(r"^(flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if match is None:
        return {}
    present = set(match[2].split())
    names = X86_FEATURES if match[1] == "flags" else ARM_FEATURES
    return {name: flag in present for flag, name in names.items()}


def bytes_overflow(cpuinfo: str) -> bool:
    """Whether the processor adds products of unsigned and signed bytes in 16 bits, in which they do not fit.

    So does x86 without VNNI. Where the features cannot be read, the processor is taken to have it.
    """
    features = cpu_features(cpuinfo)
    return "AVX2" in features and not any(features[name] for name in VNNI_FEATURES)


def byte_precision(cpuinfo: Path = CPUINFO) -> str:
    """ONNX Runtime's ``session.x64quantprecision`` here: with ``1`` it multiplies bytes the slow, exact way.

    It takes that way on every x86 that is told to, 40 % slower, so it is told only where bytes overflow.
    """
    return str(int(bytes_overflow(_read(cpuinfo))))


def memory_of(meminfo: str) -> dict[str, int]:
    """Bytes by name, from ``/proc/meminfo``."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)
    return {name: int(kibibytes) * 1024 for name, kibibytes in lines}


def jetson_of(tegra_release: str, model: str) -> Jetson | None:
    """The Jetson whose ``/etc/nv_tegra_release`` this is; None when there is none.

    The file begins ``# R36 (release), REVISION: 4.3, ...``.
    """
    match = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", tegra_release)
    if match is None:
        return None
    jetpack = JETPACK_OF_L4T.get(int(match[1]), "?")
    return Jetson(model.strip("\0 \n") or "Jetson", f"{match[1]}.{match[2]}", jetpack)


def free_bytes(folder: Path) -> int | None:
    """Free space on the disk that holds ``folder``, or would; None when it cannot be told."""
    existing = next((place for place in (folder, *folder.parents) if place.exists()), None)
    try:
        return None if existing is None else shutil.disk_usage(existing).free
    except OSError:
        return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
