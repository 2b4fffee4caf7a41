"""Every row offered is delivered once, refused once or dropped once, whatever the stream does in between."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acceptd import codec
from acceptd.codec import Observations
from acceptd.types import Version
from vllm_client_hook.outbound import QUEUE_FULL, GradedColumns, Outbound

K = 3
QUEUE = 40


class Stream(RuleBasedStateMachine):
    """The service's side is a set of applied (incarnation, sequence); the worker's is an Outbound."""

    @initialize(max_rows=st.integers(1, 20), in_flight=st.integers(1, 3))
    def connect(self, max_rows, in_flight):
        self.now = 0.0
        self.outbound = Outbound(K, QUEUE, 0)
        self.outbound.limits.max_rows = self.outbound.limits.rows = max_rows
        self.outbound.limits.max_in_flight = in_flight
        self.serial = 0
        self.excluded = 0
        self.applied = {}
        self.refused = set()
        self.incarnation = 0
        self.on_the_wire = []

    @rule(count=st.integers(1, 15), version=st.sampled_from([None, Version(1, 1), Version(1, 2)]))
    def offer(self, count, version):
        # Each row's one feature is its serial number: rejected at its first position.
        serials = np.arange(self.serial, self.serial + count, dtype=np.float32) / 1000
        self.serial += count
        columns = Observations(
            accepted=np.zeros(count, np.uint8),
            admitted=np.full(count, K, np.uint8),
            features=serials,
            segments=np.full(count, 3, np.uint8),
            explored=np.zeros(count, np.uint8),
            propensities=np.zeros(count, np.float32),
        )
        self.outbound.offer(GradedColumns(version, columns), self.now)

    @rule(blocks=st.integers(0, 5))
    def exclude(self, blocks):
        self.excluded += blocks
        self.outbound.exclude({7: self.excluded})

    @rule(flush=st.booleans(), wait=st.floats(0, 2))
    def send(self, flush, wait):
        self.now += wait
        message = self.outbound.next_message(self.now, flush=flush)
        if message is not None:
            decoded = codec.decode_batch(message, K)
            assert len(decoded) <= self.outbound.limits.max_rows
            self.on_the_wire.append(message)

    @precondition(lambda self: self.on_the_wire)
    @rule(refuse=st.booleans())
    def arrive_and_answer(self, refuse):
        self._arrive(self.on_the_wire.pop(0), refuse, answered=True)

    @precondition(lambda self: self.on_the_wire)
    @rule()
    def arrive_and_be_postponed(self):
        """It and what was sent after it are refused for now, and go out again in order."""
        first, *later = self.on_the_wire
        self.on_the_wire = []
        if first.sequence <= self._high_water():
            self._arrive(first, False, answered=True)
            self.on_the_wire = later
            return
        self.outbound.answered(first.sequence, self._high_water(), refused=True)
        self.outbound.postponed(first.sequence)
        assert [self.outbound.follows_postponed() for _ in later] == [True] * len(later)
        assert not self.outbound.follows_postponed()

    @precondition(lambda self: self.on_the_wire)
    @rule(arrives=st.booleans())
    def lose_the_connection(self, arrives):
        if arrives:
            self._arrive(self.on_the_wire[0], False, answered=False)
        self.on_the_wire = []
        assert self.outbound.resume(self._high_water())

    @rule()
    def lose_the_store(self):
        """The service forgets everything it had; what it had answered is gone, the rest goes under new numbers."""
        self.on_the_wire = []
        self.incarnation += 1
        self.outbound.resume(0)
        self.outbound.renumber()

    def _high_water(self):
        numbers = [sequence for who, sequence in (*self.applied, *self.refused) if who == self.incarnation]
        return max(numbers, default=0)

    def _arrive(self, message, refuse, *, answered):
        key = (self.incarnation, message.sequence)
        last = self._high_water()
        if key not in self.applied and key not in self.refused:
            assert message.sequence == last + 1
            if refuse:
                self.refused.add(key)
                self.refused_rows = getattr(self, "refused_rows", 0) + len(message.accepted)
            else:
                self.applied[key] = message.SerializeToString()
            last += 1
        if answered:
            self.outbound.answered(message.sequence, last, refused=key in self.refused)

    def _messages(self):
        from acceptd.v1 import estimator_pb2

        return [estimator_pb2.ObservationBatch.FromString(raw) for raw in self.applied.values()]

    @invariant()
    def rows_are_applied_once(self):
        features = [x for message in self._messages() for x in codec.decode_batch(message, K).features]
        assert len(features) == len(set(features))

    @invariant()
    def nothing_is_unaccounted_for(self):
        outbound = self.outbound
        assert outbound.offered == self.serial
        settled = outbound.acknowledged + outbound.refused + outbound.dropped
        assert settled <= self.serial
        if outbound.idle:
            assert settled == self.serial

    @invariant()
    def exclusions_are_told_once(self):
        told = sum(e.blocks for message in self._messages() for e in message.exclusions if e.reason == 7)
        assert told <= self.excluded
        dropped = sum(e.blocks for message in self._messages() for e in message.exclusions if e.reason == QUEUE_FULL)
        assert dropped <= self.outbound.dropped


Stream.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStream = Stream.TestCase
