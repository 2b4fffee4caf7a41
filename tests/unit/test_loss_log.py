"""While there is no stream the log says why: not at every attempt, and not only why at first."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from vllm_client_hook.loss_log import LossLog

REFUSED = "UNAVAILABLE: Connection refused"
NO_TOKEN = "ACCEPTD_TOKEN_FILE names '/run/token', which holds no token"


def test_each_reason_once_and_at_most_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimpleNamespace(now=0.0)
    losses = LossLog("host:1", logging.getLogger("test"), lambda: clock.now)

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    def line(why: str) -> str:
        return f"acceptd: no stream to host:1 ({why}); trying again"

    for clock.now in (100.0, 101.0, 159.0, 161.0, 500.0):
        losses.lost(REFUSED)
    assert said() == [line(REFUSED)]
    losses.lost(NO_TOKEN)
    assert said() == [line(NO_TOKEN)], "another reason, long after the first"
    for clock.now in (501.0, 530.0, 559.0):
        losses.lost(REFUSED)
        losses.lost(NO_TOKEN)
    assert said() == [], "reasons that alternate"
    clock.now = 561.0
    losses.lost(REFUSED)
    assert said() == [line(REFUSED)]
    losses.found()
    losses.lost(REFUSED)
    assert said() == [line(REFUSED)], "a new loss is said at once"
