"""Replaying workers against a service to which everything happens, and what must hold at the end.

`make chaos` runs 100 faults with 32 workers; without its variables a short form with each fault once or so.
"""

from __future__ import annotations

import os
import random

import pytest
from chaos_service import ChaosService, until
from crew import Crew
from faults import Chaos, mount_small_disk, unmount
from proxy import Proxy

FAULTS = int(os.environ.get("CHAOS_FAULTS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LONG = FAULTS > 0

WORKERS = 32 if LONG else 12
#: Blocks of a pair's rounds: some twenty a worker.
ROUND_BLOCKS = 20 * WORKERS
#: Seconds from one phase to the next at least, so that the fault-free run has an end, too.
PACE = 0.5 if LONG else 0.1
DISK_MEGABYTES = 48

#: Time decides nothing (no round is closed by it, and nothing ages by it), so that two runs have the same rounds.
TIMELESS = {
    "round_blocks": ROUND_BLOCKS,
    "round_seconds": 86_400,
    "round_min_seconds": 0,
    "half_life_seconds": 1e18,
    "publish_min_change": 0,
}


def run(directory, store, *, disk=None, phases=None):
    """One run to its end: (crew, the pair's last state, faults by name)."""
    service = ChaosService(directory, store, **TIMELESS)
    proxy = Proxy(service.address)
    done: list[str] = []

    def rounds(pair: str) -> int | None:
        state = service.state(pair)
        return None if state is None else state.refit.done

    crew = Crew(proxy.address, WORKERS, ROUND_BLOCKS, rounds)
    try:
        crew.last_phase = phases
        crew.pace = PACE if phases is None else 0.0
        crew.start()
        if phases is None:
            chaos = Chaos(service, proxy, crew, random.Random(SEED), disk, pause=5.0 if LONG else 0.5)
            # Each kind once, in any order, before any comes again.
            while len(done) < (FAULTS or len(chaos.kinds)):
                for fault in chaos.random.sample(chaos.kinds, len(chaos.kinds)):
                    done.append(fault.__name__)
                    fault()
                    if chaos.random.random() < 0.5:
                        # Half of the time the next fault meets workers that have not recovered from this one.
                        before = crew.phases
                        until(
                            lambda: crew.phases > before or crew.failure,  # noqa: B023
                            f"everybody is answered after {done[-3:]}, seed {SEED}",
                            lambda: f"{crew.where()}\n{service.last_words()}",
                        )
                    assert crew.is_alive(), (crew.failure, done[-3:], service.last_words())
                    if len(done) == FAULTS:
                        break
            crew.finish()
        else:
            crew.join()
        assert crew.failure is None
        state = service.state(crew.pair.id)
        threads = [uplink._thread.is_alive() for uplink in crew.uplinks]
        crew.close()
        assert service.terminate() == 0
        return crew, state, done, threads
    finally:
        crew.close()
        proxy.close()
        service.close()


@pytest.fixture
def disk(tmp_path):
    mounted = mount_small_disk(tmp_path / "disk", DISK_MEGABYTES)
    yield mounted
    if mounted is not None:
        unmount(mounted)


@pytest.mark.timeout(1200 if LONG else 180)
def test_whatever_happens_counts_are_exact_and_coefficients_those_of_a_quiet_run(tmp_path, disk, capsys):
    for name in ("chaos", "quiet"):
        (tmp_path / name).mkdir()
    store = (disk or tmp_path / "chaos") / "store.sqlite"
    crew, state, done, threads = run(tmp_path / "chaos", store, disk=disk)

    assert list(state.observations) == crew.observations.tolist()
    assert list(state.acceptances) == crew.acceptances.tolist()
    assert state.blocks == crew.blocks
    for uplink, versions in zip(crew.uplinks, crew.versions, strict=True):
        stats = uplink.stats()
        assert stats["acknowledged"] == stats["offered"]
        assert (stats["refused"], stats["dropped"], stats["stale_updates"], stats["bad_updates"]) == (0, 0, 0, 0)
        assert versions == sorted(versions)
        assert len(versions) > 1
    assert all(threads)
    assert crew.errors.lines == []

    quiet, expected, _, _ = run(tmp_path / "quiet", tmp_path / "quiet" / "store.sqlite", phases=crew.phases)
    assert quiet.blocks == crew.blocks
    assert list(expected.observations) == list(state.observations)
    assert state.refit.done == expected.refit.done == crew.phases
    assert state.coefficients.knots == expected.coefficients.knots
    assert len(state.coefficients.segments) == len(expected.coefficients.segments)
    for mine, theirs in zip(state.coefficients.segments, expected.coefficients.segments, strict=True):
        assert list(mine.slopes) == pytest.approx(list(theirs.slopes), abs=1e-6)
        assert list(mine.intercepts) == pytest.approx(list(theirs.intercepts), abs=1e-6)
    with capsys.disabled():
        if LONG:
            kinds = ", ".join(f"{name} {done.count(name)}" for name in sorted(set(done)))
            print(
                f"\nseed {SEED}: {len(done)} faults ({kinds}); {crew.blocks} blocks in {crew.phases} rounds, all there"
            )
