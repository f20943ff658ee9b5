"""Regenerate the gRPC stubs from wire/verifier.proto, or check that the committed ones are current.

    python scripts/proto.py           writes wire/verifier_pb2*
    python scripts/proto.py --check   writes nothing; exits 1 and names what is stale

The generators are those of the pinned environment (grpcio-tools, mypy-protobuf): another version writes
other text. The file is compiled as ``acespec/wire/verifier.proto``, so the stubs import one another by their
full name.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PROTO = Path("acespec/wire/verifier.proto")
STUBS = ("verifier_pb2.py", "verifier_pb2.pyi", "verifier_pb2_grpc.py", "verifier_pb2_grpc.pyi")


def generate(target: Path) -> Path:
    """Compile the .proto below ``target`` and return the folder with the stubs."""
    plugins = Path(sysconfig.get_path("scripts"))
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT / 'src'}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            str(PROTO),
        ]
    )
    if status != 0:
        sys.exit("protoc failed: its message stands above; `pip install -e .[dev]` installs the generators")
    return target / PROTO.parent


def stale(generated: Path, committed: Path) -> list[str]:
    """Names of the stubs that are missing or differ from what the .proto yields."""
    return [
        name
        for name in STUBS
        if not (committed / name).is_file()
        or (committed / name).read_bytes() != (generated / name).read_bytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Regenerate the gRPC stubs in wire/.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a stub is stale")
    parser.add_argument(
        "--stubs", type=Path, default=ROOT / "wire", help="folder of the stubs (default: wire/)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generated = generate(Path(folder))
        names = stale(generated, options.stubs)
        if options.check and names:
            sys.exit(f"stale stubs: {', '.join(names)}; run `make proto` and commit the result")
        for name in names:
            shutil.copyfile(generated / name, options.stubs / name)


if __name__ == "__main__":
    main()
