"""What happens inside the engine's process, one function a scenario; see `engine.run`. Answers are plain values."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import engine
import tiny_models
from service import Service

if TYPE_CHECKING:
    from pathlib import Path


def say(what: str) -> None:
    print(f"{time.monotonic():.1f} {what}", flush=True)


def models(directory: Path) -> tuple[str, str]:
    target, draft = tiny_models.write_pair(directory)
    return str(target), str(draft)


def tokens(directory: Path, *, requests: int = 3, length: int = 24, adaptive: bool = True) -> dict[str, Any]:
    """Seeded tokens and what stands in the worker, with whatever the environment says about the hook."""
    llm = engine.start(models(directory), adaptive=adaptive)
    return {
        "tokens": engine.generate(llm, requests, length),
        **llm.collective_rpc("watched")[0],
        "modules": sorted(name for name in sys.modules if name.startswith(("vllm_client_hook", "grpc"))),
        "vllm_imports_grpc": "grpc" in sys.modules and "vllm_client_hook.uplink" not in sys.modules,
    }


def loop(directory: Path) -> dict[str, Any]:
    """Plain requests, altered ones, a service killed in the middle: one engine start for all of it."""
    service = Service(directory)
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    os.environ["ACCEPTD_WORKER"] = "engine-test"
    llm = engine.start(models(directory))
    answer: dict[str, Any] = {"tokens": engine.generate(llm, 3, 24)}
    say("generated")
    try:
        answer["first"] = _settled(llm, service)
        answer["altered_alone"] = _altered(llm)
        engine.generate(llm, 4, 60, seed=100)
        # Altered requests beside plain ones, in the same steps.
        engine.generate(
            llm,
            4,
            24,
            seed=500,
            tags=["", "altered", "", "altered"],
            repetition_penalty=[1.0, 1.3, 1.0, 1.0],
            allowed_token_ids=[None, None, None, list(range(200))],
        )
        answer["second"] = _settled(llm, service)
        # Killed while requests decode, back after a while.
        before = len(llm.collective_rpc("watched")[0]["coefficients"])
        threading.Thread(target=_outage, args=(service,), daemon=True).start()
        engine.generate(llm, 4, 80, seed=600)
        answer["steps_through_outage"] = len(llm.collective_rpc("watched")[0]["coefficients"]) - before
        engine.generate(llm, 4, 24, seed=700)
        answer["third"] = _settled(llm, service)
        answer["epochs"] = [int(version.split(".")[0]) for version, _ in answer["third"]["watch"]["coefficients"]]
    finally:
        service.stop()
    return answer


def _outage(service: Service) -> None:
    time.sleep(2.0)
    service.kill()
    time.sleep(1.0)
    service.start()


def _altered(llm: Any) -> dict[str, Any]:
    """Only requests whose target is altered beyond what the draft sees."""
    before = llm.collective_rpc("acceptd_status")[0]
    engine.generate(
        llm,
        4,
        12,
        seed=50,
        tags=["altered"] * 4,
        repetition_penalty=[1.2, 1.0, 1.0, 1.0],
        bad_words=[None, ["a"], None, None],
        allowed_token_ids=[None, None, list(range(100)), None],
        min_tokens=[0, 0, 0, 5],
    )
    llm.collective_rpc("acceptd_flush", args=(10.0,))
    after = llm.collective_rpc("acceptd_status")[0]
    return {"offered": after["uplink"]["offered"] - before["uplink"]["offered"]}


def _settled(llm: Any, service: Service) -> dict[str, Any]:
    """Everything sent and answered, and the newest version applied; then both sides."""
    say("settling")
    flushed = llm.collective_rpc("acceptd_flush", args=(20.0,))
    pair = service.ask("pairs")[0]["id"]
    shown = service.ask("show", pair)
    for _ in range(8):
        # The steps that apply a version must bring no rows, or they bring the next version too.
        engine.generate(llm, 1, 16, seed=999, tags=["altered"], repetition_penalty=1.2)
        before, shown = shown, service.ask("show", pair)
        status = llm.collective_rpc("acceptd_status")
        say(f"service {_version(shown)}, worker {status[0]['version']}")
        if _version(shown) == _version(before) == status[0]["version"]:
            break
    watch = llm.collective_rpc("watched")[0]
    shown["totals"] = _reported(llm, service, pair, altered=watch["blocks"].get("altered", 0))
    return {"shown": shown, "status": status, "flushed": flushed, "watch": watch}


def _reported(llm: Any, service: Service, pair: str, *, altered: int) -> dict[str, Any]:
    """The totals once the report of the last steps has arrived: a flush asks for one, and does not wait for it."""
    names = ("penalties", "bad_words", "allowed_tokens", "min_tokens")
    deadline = time.monotonic() + 20
    while True:
        llm.collective_rpc("acceptd_flush", args=(5.0,))
        totals = service.ask("show", pair)["totals"]
        told = sum(totals["exclusions"].get(name, 0) for name in names)
        if told >= altered or time.monotonic() > deadline:
            return totals


def _version(shown: dict[str, Any]) -> str:
    version = shown["coefficients"]["version"]
    return f"{version['epoch']}.{version['counter']}"


def trimmed(directory: Path) -> dict[str, Any]:
    """Cost tables that make verification dear, too few blocks for all requests, and new weights at the end."""
    service = Service(directory)
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    try:
        llm = engine.start(
            models(directory),
            additional={"acceptd": {"workload": "unit"}},
            # 4 requests of up to 44 tokens want 8 blocks and more for their drafts.
            options={"block_size": 32, "num_gpu_blocks_override": 7, "max_model_len": 128},
        )
        lengths = [len(tokens) for tokens in engine.generate(llm, 4, 40)]
        answer = _settled(llm, service) | {"workers": service.ask("workers"), "lengths": lengths}
        llm.collective_rpc("reload_weights")
        engine.generate(llm, 2, 12, seed=40)
        flushed = llm.collective_rpc("acceptd_flush", args=(20.0,))
        return answer | {
            "pairs": {pair["key"]["weights_generation"]: pair["observations"] for pair in service.ask("pairs")},
            "flushed_again": flushed,
            "watch_again": llm.collective_rpc("watched")[0],
        }
    finally:
        service.stop()


def drafter(directory: Path, *, method: str) -> dict[str, Any]:
    """Another kind of drafter: the same loop, shorter."""
    service = Service(directory)
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    write = {"eagle": tiny_models.write_eagle, "dflash": tiny_models.write_dflash}[method]
    target, draft = map(str, write(directory))
    try:
        llm = engine.start((target, draft), method=method)
        engine.generate(llm, 3, 24)
        return _settled(llm, service)
    finally:
        service.stop()


def block_rejection(directory: Path) -> dict[str, Any]:
    """Verification by vLLM's block test, whose verdicts are not per token."""
    service = Service(directory)
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    try:
        llm = engine.start(models(directory), rejection_sample_method="block")
        engine.generate(llm, 3, 16)
        watch = llm.collective_rpc("watched")[0]
        pair = service.ask("pairs")[0]["id"]
        deadline = time.monotonic() + 20
        while True:
            llm.collective_rpc("acceptd_flush", args=(5.0,))
            shown = service.ask("show", pair)
            if shown["totals"]["exclusions"] or time.monotonic() > deadline:
                return {"shown": shown, "watch": watch}
    finally:
        service.stop()


def ranks(directory: Path, *, tensor_parallel: int = 2, length: int = 60) -> dict[str, Any]:
    """Two ranks: what each applied after every step, over five changes, and five more with late copies on rank 1."""
    service = Service(directory)
    service.start()
    os.environ["ACCEPTD_ADDRESS"] = service.address
    os.environ["ACCEPTD_AGREEMENT_TIMEOUT"] = "5"
    try:
        llm = engine.start(models(directory), tensor_parallel=tensor_parallel)
        made = engine.generate(llm, 2, length)
        if llm.collective_rpc("acceptd_status")[0]["active"]:
            made += _until_changed(llm, 5, seed=10, length=length)
            steps = len(llm.collective_rpc("watched")[0]["coefficients"])
            llm.collective_rpc("late")
            made += _until_changed(llm, 10, seed=100, length=length)
        else:
            steps = 0
        return {
            "generated": [len(tokens) for tokens in made],
            "steps_before_late": steps,
            "watched": llm.collective_rpc("watched"),
            "status": llm.collective_rpc("acceptd_status"),
        }
    finally:
        service.stop()


def _until_changed(llm: Any, times: int, *, seed: int, length: int) -> list[list[int]]:
    """Generates until the coefficients have changed this often since the start, within reason."""
    made: list[list[int]] = []
    for attempt in range(6):
        applied = llm.collective_rpc("watched")[0]["coefficients"]
        if len({version for version, _ in applied}) > times:
            break
        made += engine.generate(llm, 2, length, seed=seed + 10 * attempt)
    return made
