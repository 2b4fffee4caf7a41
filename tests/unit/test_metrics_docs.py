"""docs/metrics.md and what is exported, both ways; and how much that is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest
from fit_streams import blocks_of
from prometheus_client import CollectorRegistry, generate_latest

from acceptd.codec import encode_pair_key
from acceptd.types import PairKey
from acceptd.v1 import estimator_pb2
from estimator_service.config import load_settings
from estimator_service.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@pytest.fixture
async def started(tmp_path):
    """(server, its registry); nothing listens beyond this test."""
    settings = load_settings(
        {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "store": str(tmp_path / "store")}, environ={}
    )
    registry = CollectorRegistry()
    server = await Server.start(settings, registry=registry)
    async with server:
        yield server, registry


async def connect(fleet, pair, worker):
    hello = estimator_pb2.Hello(pair=encode_pair_key(pair), worker=worker, incarnation=7)
    return await fleet.connect(hello, "test")


async def test_each_metric_has_a_row_with_its_help_text_and_each_row_a_metric(started):
    _, registry = started
    rows = dict(re.findall(r"^\| `(acceptd_\w+)` \| [^|]* \| (.+?) \|$", PAGE.read_text(), re.M))
    families = list(registry.collect())
    exported = {f.name + {"counter": "_total", "info": "_info"}.get(f.type, ""): f.documentation for f in families}
    assert rows == exported
    assert all(exported.values())


async def test_labels_are_those_of_the_page_and_never_a_worker(started):
    server, registry = started
    await fill(server.fleet, pairs=1, workers=2)
    labels = dict(re.findall(r"^\| `(acceptd_\w+)` \| ([^|]*) \|", PAGE.read_text(), re.M))
    for family in registry.collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        listed = set(re.findall(r"`(\w+)`", labels[name]))
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == listed, sample


async def test_samples_a_pair_are_bounded_whatever_its_workers(started):
    """The bound that docs/metrics.md states, for K positions, with everything a pair can show in use."""
    server, registry = started
    before = samples(registry)
    await fill(server.fleet, pairs=20, workers=10)
    each = (samples(registry) - before) / 20
    stated = re.search(r"at most (\d+) \+ (\d+) · K", PAGE.read_text())
    assert each <= int(stated[1]) + int(stated[2]) * 8


def samples(registry):
    return sum(not line.startswith("#") for line in generate_latest(registry).decode().splitlines())


async def fill(fleet, pairs, workers):
    """Pairs of K = 8 with a fitted link, segments and all their workers connected."""
    rng = np.random.default_rng(0)
    for i in range(pairs):
        key = PairKey("target", f"draft-{i}", 8)
        for j in range(workers):
            session = await connect(fleet, key, f"w{j}")
        for segment in range(5):
            rows = blocks_of(rng, 400, 0.6, np.linspace(0.5, -0.5, 8), segments=np.full(400, segment, np.uint8))
            session.pair.apply(rows, (), None, "", "w0")
        fleet._close_round(session.pair)
        await asyncio.sleep(0)


async def test_a_drift_is_counted_by_kind_and_written_to_the_log(started, caplog):
    server, registry = started
    rng = np.random.default_rng(3)
    session = await connect(server.fleet, PairKey("target", "draft", 4), "w")
    pair = session.pair.id

    def count(kind):
        return registry.get_sample_value("acceptd_drifts_total", {"pair": pair, "kind": kind})

    assert (count("pair"), count("workload")) == (0, 0)
    for i in range(50):
        rows = blocks_of(rng, 640, 0.5 if i < 38 else 0.7, (0.2, 0.0, -0.2, -0.4))
        session.pair.apply(rows, (), None, "", "w")
        server.fleet._close_round(session.pair)
        await asyncio.sleep(0)
    assert (count("pair"), count("workload")) == (1, 0)
    assert any(pair in line and "pair drift" in line for line in caplog.messages)
    assert registry.get_sample_value("acceptd_drift_score", {"pair": pair, "kind": "pair"}) < 1
