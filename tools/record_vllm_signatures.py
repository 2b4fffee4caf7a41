"""Records the signatures that the hook's gate looks at, from unpacked vLLM wheels, without importing them.

    python tools/record_vllm_signatures.py 0.30.0=DIR 0.31.0=DIR …

DIR holds the package `vllm`. Writes tests/data/vllm_signatures.json: version → name → parameters, or null.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "proto")]

from vllm_client_hook import gate  # noqa: E402 (after the path to it)

TARGET = Path(__file__).resolve().parents[1] / "tests" / "data" / "vllm_signatures.json"

FILES = {
    "OnlineAcceptanceEstimator": "v1/worker/gpu/spec_decode/acceptance_estimator.py",
    "DraftModelSpeculator": "v1/worker/gpu/spec_decode/speculator.py",
    "Sampler": "v1/worker/gpu/sample/sampler.py",
}


def parameters(root: Path, name: str) -> list[str] | None:
    """Parameter names of `Class.method`; None if it is not there."""
    owner, method = name.split(".")
    path = root / "vllm" / FILES[owner]
    if not path.exists():
        return None
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == method:
                    return [
                        argument.arg for argument in (*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs)
                    ]
    return None


def main() -> None:
    """Reads every directory named and writes one file."""
    recorded = {}
    for argument in sys.argv[1:]:
        version, _, directory = argument.partition("=")
        names = (*gate.ESTIMATOR, *gate.BINDING)
        recorded[version] = {name: parameters(Path(directory), name) for name in names}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{TARGET}: {', '.join(recorded)}")


if __name__ == "__main__":
    main()
