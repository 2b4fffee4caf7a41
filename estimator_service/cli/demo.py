"""`acceptd demo`: the whole loop on one machine, from a recorded trace."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from acceptd.v1 import inspect_pb2
from estimator_service import jsonable
from estimator_service.cli.client import CommandFailed, InspectClient
from estimator_service.cli.demo_processes import DemoService, DemoWorkers, unwinding
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, facts, number, print_json

if TYPE_CHECKING:
    from estimator_service.cli.demo_report import Report

#: The recording that ships with the repository; a wheel does not hold it.
TRACE: Final = Path(__file__).resolve().parents[2] / "examples" / "smollm2-skip3.parquet"

#: Seconds the killed service stays away: long enough for rows to wait in the workers.
OUTAGE_SECONDS: Final = 1.0

#: Seconds without a single new block after which the demo gives up.
STALL_SECONDS: Final = 45.0

_POLL: Final = 0.1


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running at the end.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 4,
    speed: Annotated[
        float,
        typer.Option(min=0.0, metavar="STEPS", help="Decode steps a second; 0: as fast as the service takes them."),
    ] = 40.0,
    trace: Annotated[
        Path, typer.Option(metavar="FILE", help="Recording, format acceptd-trace/1.", show_default="the repository's")
    ] = TRACE,
    as_json: Json = False,
) -> None:
    """The whole loop on this machine: no GPU, no vLLM.

    Starts a real service on free loopback ports, replays recorded
    speculative decoding from worker processes over gRPC, kills the service
    with SIGKILL half-way and starts it again, and compares what it counted
    with the recording.

    Examples:
      acceptd demo
      acceptd demo --keep
      acceptd demo --speed 0 --json | jq .scores
    """
    try:
        import pyarrow as _  # noqa: F401, PLC0415  (of the lab extra, and slow to import)
    except ModuleNotFoundError:
        raise CommandFailed('the demo reads a Parquet file and needs: pip install "acceptd[service,lab]"') from None
    if not trace.is_file():
        raise CommandFailed(f"no recording at {trace}; name one with --trace (the repository has one in examples/)")
    with unwinding():
        _demo(trace, workers, speed, keep=keep, as_json=as_json)


def _demo(trace: Path, workers: int, speed: float, *, keep: bool, as_json: bool) -> None:
    """From an empty folder to the report. Leaves nothing running, unless it is done and `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="acceptd-demo-"))
    service = DemoService(folder)
    finished = False
    try:
        report = _run(service, trace, workers, speed, folder, quiet=as_json)
        finished = True
        if as_json:
            print_json({**report.to_json(), "kept": service.to_json() if keep else None})
        else:
            console().print(report.view())
            if keep:
                console().print(_kept(service, report.state.summary.id))
        if not report.exact:
            raise typer.Exit(1)
    finally:
        if not (finished and keep):
            service.stop()
        if (finished and not keep) or isinstance(sys.exception(), SystemExit):
            # After a failure the logs stay: the error names one of them.
            shutil.rmtree(folder, ignore_errors=True)


def _run(service: DemoService, trace: Path, workers: int, speed: float, folder: Path, *, quiet: bool) -> Report:
    from estimator_service.cli.demo_report import Recording, Report  # noqa: PLC0415  (imports pyarrow)

    recording = Recording.read(trace)
    total = len(recording.blocks)
    service.start()
    replaying = DemoWorkers(trace, service.address, workers, speed, folder)
    started = time.monotonic()
    try:
        with _progress(quiet) as progress:
            task = progress.add_task("starting", total=total)
            _follow(service, replaying, progress, task, until=total // 2)
            progress.update(task, description="[yellow]kill -9[/]")
            killed = time.monotonic()
            service.kill()
            time.sleep(OUTAGE_SECONDS)
            service.start()
            outage = time.monotonic() - killed
            _follow(service, replaying, progress, task, until=total)
            while replaying.running:
                time.sleep(_POLL)
            seconds = time.monotonic() - started
        with InspectClient(service.address) as client:
            state = client.pair(client.pairs().pairs[0].id)
            history = client.history(state.summary.id, 10_000).entries
        return Report(recording, state, history, replaying.results(), replaying.predictions, seconds, outage)
    finally:
        replaying.stop()


def _follow(service: DemoService, replaying: DemoWorkers, progress: Progress, task: TaskID, *, until: int) -> None:
    """Shows what the service has, until it has `until` blocks or all workers are done. Raises CommandFailed."""
    blocks, moved = -1, time.monotonic()
    with InspectClient(service.address) as client:
        while replaying.running:
            pairs = client.pairs().pairs
            if pairs:
                state = client.pair(pairs[0].id)
                if state.blocks != blocks:
                    blocks, moved = state.blocks, time.monotonic()
                progress.update(task, completed=blocks, description=_now(state))
                if blocks >= until:
                    return
            if time.monotonic() - moved > STALL_SECONDS:
                raise CommandFailed(f"no block has come for {STALL_SECONDS:g} s; the service's log is {service.log}")
            time.sleep(_POLL)


def _now(state: inspect_pb2.PairState) -> str:
    version = jsonable.version_text(state.coefficients.version)
    return f"v{version:<6} slope {number(state.coefficients.line.slopes[0])}"


def _progress(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TextColumn("blocks"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), disable=quiet)


def _kept(service: DemoService, pair: str) -> object:
    return facts(
        [
            ("still running", f"process {service.pid}; stop it with: kill {service.pid}"),
            ("look at it", f"acceptd show {pair.partition('~')[0]} --address {service.address}"),
            ("metrics", f"http://{service.metrics_address}/metrics"),
            ("store", str(service.store)),
        ]
    )
