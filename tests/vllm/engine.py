"""Starts one engine in a process of its own and runs a scenario in it; the scenario's answer comes back as JSON.

    python engine.py SCENARIO DIRECTORY '{"argument": …}'

A process for each, so that a crash or a hang is one failed test, and environment and plugins are what the test says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "SCENARIO-RESULT "

#: Seconds a scenario may take: several times what it needs on two idle cores.
TIMEOUT = 400.0

#: What running all of it on a CPU needs. One core a rank; more would only compete with the interpreter.
ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def run(
    scenario: str,
    directory: Path,
    *,
    environment: dict[str, str] | None = None,
    timeout: float = TIMEOUT,
    **arguments: Any,
) -> dict[str, Any]:
    """The scenario's answer, with "log": everything the engine wrote."""
    tensor_parallel = arguments.get("tensor_parallel", 1)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACCEPTD_")}
    kept = {name: os.environ[name] for name in ("ACCEPTD_SERVICE_PYTHON",) if name in os.environ}
    paths = [HERE / "site", HERE, *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    log_file = directory / f"{scenario}.log"
    settings = {
        "PYTHONPATH": ":".join(map(str, paths)),
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(core) for core in range(tensor_parallel)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if tensor_parallel == 1 else "1",
    }
    with log_file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "engine.py"), scenario, str(directory), json.dumps(arguments)],
            env=inherited | kept | ENVIRONMENT | settings | (environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{scenario} hangs:\n{log_file.read_text(errors='replace')[-6000:]}") from None
    finally:
        # Its session holds its workers and its service: none of them outlives the scenario.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log = log_file.read_text(errors="replace")
    answers = [line for line in log.splitlines() if line.startswith(MARK)]
    assert answers, f"{scenario} gave no answer:\n{log[-6000:]}"
    return json.loads(answers[-1].removeprefix(MARK)) | {"log": log}


def start(
    models: tuple[str, str],
    *,
    tensor_parallel: int = 1,
    adaptive: bool = True,
    additional: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **speculative: Any,
) -> Any:
    """An LLM over the tiny pair: K = 4, probabilistic drafts, adaptive verification on."""
    from vllm import LLM

    target, draft = models
    settings: dict[str, Any] = {
        "model": target,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "tensor_parallel_size": tensor_parallel,
        "distributed_executor_backend": "uni" if tensor_parallel == 1 else "mp",
        "disable_log_stats": True,
        "enable_prefix_caching": False,
        "additional_config": additional or {},
        "speculative_config": {
            "model": draft,
            "num_speculative_tokens": 4,
            "draft_sample_method": "probabilistic",
            "enable_adaptive_verification": adaptive,
            **speculative,
        },
    }
    return LLM(**settings | (options or {}))


def generate(
    llm: Any, requests: int, tokens: int, *, seed: int = 0, tags: list[str] | None = None, **parameters: Any
) -> list[list[int]]:
    """Token ids of seeded requests. tags: what the harness counts them under."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [(7 * (seed + i)) % 250 + 1, 5, 9, 30 + i]} for i in range(requests)]
    sampling = [
        SamplingParams(
            temperature=1.0,
            seed=seed + i,
            max_tokens=tokens,
            ignore_eos=True,
            extra_args={"tag": tags[i] if tags else ""},
            **{name: value[i] if isinstance(value, list) else value for name, value in parameters.items()},
        )
        for i in range(requests)
    ]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    import budget_scenarios
    import outage_scenarios
    import scenarios

    name, directory, arguments = sys.argv[1:]
    owner = next(module for module in (scenarios, budget_scenarios, outage_scenarios) if hasattr(module, name))
    answer = getattr(owner, name)(Path(directory), **json.loads(arguments))
    print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
