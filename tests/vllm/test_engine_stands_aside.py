"""A vLLM that is not what the hook knows gets its own class back, and one line says why."""

from __future__ import annotations

import pytest
from engine import TIMEOUT, run

#: An engine's start and its requests; `run` itself gives up a little before.
pytestmark = pytest.mark.timeout(TIMEOUT + 60)

STOCK = "OnlineAcceptanceEstimator"
ADDRESS = {"ACCEPTD_ADDRESS": "127.0.0.1:9"}


def not_active(answer) -> list[str]:
    return [line for line in answer["log"].splitlines() if "not active" in line]


@pytest.mark.parametrize(
    ("how", "adaptive", "why"),
    [
        # Without its class vLLM itself cannot run adaptive verification, so that is off here.
        ("missing", False, "this vLLM has no OnlineAcceptanceEstimator"),
        ("signature", True, "OnlineAcceptanceEstimator.predict takes"),
    ],
)
def test_a_patched_vllm(tmp_path, how, adaptive, why):
    answer = run(
        "tokens",
        tmp_path,
        environment=ADDRESS | {"ACCEPTD_TEST_BREAK": how},
        requests=1,
        length=4,
        adaptive=adaptive,
    )
    assert len(answer["tokens"][0]) == 4
    assert "vllm_client_hook.estimator" not in answer["estimator"]
    assert not any("acceptd" in name for name in answer["threads"])
    lines = not_active(answer)
    assert len(lines) == 1, lines
    assert why in lines[0]
