"""`acceptd simulate` as a user runs it, on the trace that ships with the repo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "examples" / "smollm2-skip3.parquet"


def acceptd(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "estimator_service.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    plots = tmp_path_factory.mktemp("plots")
    code, out, err = acceptd(
        "simulate", TRACE, "--concurrency", "8,64", "--roofline", "h200-8b-block", "--json", "--plot", plots
    )
    assert code == 0, err
    return json.loads(out), plots


def test_the_json_has_every_policy(simulated):
    found, _ = simulated
    assert list(found["concurrency"]) == ["8", "64"]
    for values in found["concurrency"].values():
        assert list(values["fixed"]) == [str(k) for k in range(8)]
        assert set(values["av"]) == {"raw", "round", "line", "link", "link+segments", "oracle"}
        assert all(v > 0 for v in (*values["fixed"].values(), *values["av"].values()))


def test_calibrated_probabilities_come_close_to_the_oracle(simulated):
    found, _ = simulated
    free, bound = found["concurrency"]["8"], found["concurrency"]["64"]
    assert not free["binds"]
    assert bound["binds"]
    for values in (free, bound):
        assert values["share_of_oracle"]["link+segments"] >= 0.93
        fixed = max(v for k, v in values["fixed"].items() if k != "0")
        assert values["av"]["link+segments"] >= 0.99 * fixed
    assert bound["av"]["link+segments"] > bound["av"]["round"] > bound["av"]["raw"]


def test_plots_are_written(simulated):
    _, plots = simulated
    names = ["simulate_share_of_oracle.png", "simulate_throughput.png", "simulate_verified.png"]
    assert sorted(path.name for path in plots.iterdir()) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())


def test_a_profile_and_the_tables(tmp_path):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"draft": [[1, 1.0], [64, 2.0]], "verify": [[1, 5.0], [64, 6.0], [512, 20.0]]}))
    code, out, err = acceptd("simulate", TRACE, "--costs", costs, "--concurrency", "32", "--max-steps", "200")
    assert code == 0, err
    assert "Share of the oracle's, %" in out
    assert "AV with link+segments at the number of drafted tokens that suits it best" in out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--roofline", "a100"], "roofline 'a100' is unknown; accepted: h200-8b-ar"),
        (["--concurrency", "1,x"], "--concurrency is '1,x'; accepted: whole numbers from 1 to 4096"),
        (["--concurrency", "0"], "--concurrency is '0'"),
        (["--concurrency", "4000"], "concurrency is 4000; accepted: at most"),
        (["--costs", "missing.json"], "missing.json"),
        (["--costs", "a.json", "--roofline", "h200-8b-ar"], "accepted: one of them"),
    ],
)
def test_misuse_is_one_clear_line(arguments, part):
    code, out, err = acceptd("simulate", TRACE, *arguments)
    assert code in {1, 2}
    assert out == ""
    assert part in err
    assert "Traceback" not in err
