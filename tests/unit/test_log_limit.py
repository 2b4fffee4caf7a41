"""Bursts of one message are cut, others are not, and the cut is told."""

from __future__ import annotations

import logging

from estimator_service.log_limit import LogLimit


def test_a_burst_is_cut_and_told(caplog):
    now = [0.0]
    logger = logging.getLogger("test.limit")
    limit = LogLimit(lambda: now[0])
    logger.addFilter(limit)
    try:
        with caplog.at_level("INFO"):
            for i in range(50):
                logger.info("worker %d", i)
            logger.info("something else")
            assert [r.getMessage() for r in caplog.records[-2:]] == ["worker 19", "something else"]
            now[0] = 10.0
            logger.info("worker %d", 50)
            assert caplog.records[-1].getMessage() == "worker 50 (and 30 more like this before)"
            assert len(limit._windows) == 2
    finally:
        logger.removeFilter(limit)
