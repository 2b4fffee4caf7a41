"""Drafters beside a plain draft model, in real vLLM: an autoregressive head, and one that fills a block in one pass.

EAGLE calls `predict` once a position with one row a request; DFlash once a block, K consecutive rows a request and a
position for each row. What this build of vLLM cannot run is listed in docs/vllm.md, and its shapes are in
test_predict.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from engine import TIMEOUT, run

#: An engine's start and its requests; `run` itself gives up a little before.
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.mark.parametrize("method", ["eagle", "dflash"])
def test_counts_and_coefficients_are_exact(tmp_path, method):
    answer = run("drafter", tmp_path, method=method)
    watch, shown, status = answer["watch"], answer["shown"], answer["status"][0]
    assert shown["key"]["method"] == method
    assert sum(watch["observed"][""]) > 40
    assert sum(watch["accepted"][""]) > 0
    assert shown["observations_by_position"] == watch["observed"][""]
    assert shown["acceptances_by_position"] == watch["accepted"][""]
    version = shown["coefficients"]["version"]
    assert status["version"] == f"{version['epoch']}.{version['counter']}"
    wanted = np.array([shown["coefficients"]["slope"], *shown["coefficients"]["intercepts"]], np.float32)
    held = np.array(status["slope"] + status["intercepts"], np.float32)
    assert (held.view(np.uint32) == wanted.view(np.uint32)).all()


def test_another_rejection_method_gives_no_observation(tmp_path):
    answer = run("block_rejection", tmp_path)
    shown, watch = answer["shown"], answer["watch"]
    assert shown["observations"] == 0
    assert shown["totals"]["exclusions"]["rejection_method"] == watch["blocks"][""]
