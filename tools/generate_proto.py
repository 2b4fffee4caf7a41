"""Generates proto/acceptd/v1/*_pb2*.py from the .proto files, or checks that they are up to date.

Generated with grpcio-tools 1.62 (protobuf 4.25's generator) on purpose: its code carries no runtime version
check, so it loads with every protobuf runtime from 5.29 to 7.x, which is what vLLM's own range allows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TOOL_ENV = ROOT / ".venv-proto"
# setuptools: grpcio-tools 1.62 imports pkg_resources.
REQUIREMENTS = ["grpcio-tools==1.62.3", "setuptools<80"]


def tool_python() -> Path:
    """The interpreter of the generator's own environment, made if it is missing."""
    python = TOOL_ENV / "bin" / "python"
    stamp = TOOL_ENV / ".installed"
    if not stamp.exists():
        venv.create(TOOL_ENV, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
        stamp.write_text("\n".join(REQUIREMENTS))
    return python


def generate(target: Path) -> None:
    """Writes the generated modules below `target`."""
    sources = sorted(str(p.relative_to(PROTO)) for p in (PROTO / "acceptd" / "v1").glob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    command = [tool_python(), "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *sources]
    subprocess.run(command, check=True, cwd=PROTO)
    for path in (target / "acceptd" / "v1").glob("types_pb2_grpc.py"):
        path.unlink()  # types.proto declares no service


def stale_files() -> list[str]:
    """Names of generated files that differ from what the .proto files give now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {p.name: p.read_bytes() for p in (Path(scratch) / "acceptd" / "v1").iterdir()}
    here = {p.name: p.read_bytes() for p in (PROTO / "acceptd" / "v1").glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | here.keys() if fresh.get(name) != here.get(name))


def main() -> int:
    """Generates, or with --check only compares; 1 if something is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    if not parser.parse_args().check:
        generate(PROTO)
        return 0
    stale = stale_files()
    if stale:
        print(f"generated code is stale: {', '.join(stale)}; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
