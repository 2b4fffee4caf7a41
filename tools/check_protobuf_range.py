"""Loads the generated code, and sends a message through it, with the oldest, a middle and the newest protobuf allowed.

vLLM pins its own protobuf, and an import error in a plugin kills nothing but the plugin: this finds it before users do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RANGE = ["protobuf==5.29.6", "protobuf>=6,<7", "protobuf>=7,<8"]
PROGRAM = """
import sys
import google.protobuf
from acceptd.v1 import estimator_pb2, inspect_pb2, types_pb2
sent = estimator_pb2.ObservationBatch(sequence=7, accepted=b"\\x01", version=types_pb2.Version(epoch=3, counter=4))
assert estimator_pb2.ObservationBatch.FromString(sent.SerializeToString()) == sent
assert inspect_pb2.PairState(observations=[1, 2]).observations == [1, 2]
print("generated code works with protobuf", google.protobuf.__version__)
"""


def main() -> int:
    """1 if one of the versions does not load the code."""
    failed = 0
    for requirement in RANGE:
        with tempfile.TemporaryDirectory() as target:
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, requirement], check=True
            )
            # -S: the environment's own protobuf is out of sight.
            command = [sys.executable, "-S", "-c", PROGRAM]
            path = f"{target}:{ROOT / 'proto'}"
            failed += subprocess.run(command, env={"PYTHONPATH": path}, check=False).returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
