"""Answers to batches: which of them leave, when, and that together they say the same as one for each batch would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acceptd.v1.estimator_pb2 import BatchResult, RejectReason
from estimator_service.answers import Acceptance, Answers


def test_what_is_due_is_not_put_off_by_batches_that_come_faster_than_commits():
    answers = Answers(8, 0.25)
    for i in range(1, 50):
        answers.add(Acceptance(i, 5), i, i - 2, i / 1000)
        expected = [(i - 1, i - 1, 5, 0)] if i > 1 else []
        answers.hurry()
        assert taken(answers, committed=i - 1, now=i / 1000) == expected


def test_answers_that_wait_for_commits_join_until_they_are_due():
    answers = after_one(ticket=1)
    answers.add(Acceptance(2, 5), 2, 1, 0.1)
    answers.add(Acceptance(3, 5), 3, 1, 0.2)
    answers.hurry()
    assert not taken(answers, committed=2, now=0.2)
    assert taken(answers, committed=3, now=0.2) == [(3, 3, 10, 0)]


def test_a_ticket_never_goes_down():
    answers = after_one(pause=5.0, ticket=4)
    answers.add(Acceptance(2, 5), 5, 4, 0.1)
    answers.add(Acceptance(3, 5), 0, 4, 0.2)
    answers.hurry()
    assert not taken(answers, committed=4, now=0.2)
    assert taken(answers, committed=5, now=0.2) == [(3, 3, 10, 0)]


def test_who_waits_for_the_answers_gets_them():
    answers = after_one()
    answers.hurry()
    answers.add(Acceptance(2, 5), 0, 0, 0.01)
    assert not taken(answers, now=0.01), "nothing waited when it was asked"
    answers.hurry()
    assert taken(answers, now=0.01) == [(2, 2, 5, 0)]


def refusal(sequence, rows=3):
    return BatchResult(
        sequence=sequence,
        last_sequence=sequence,
        rows_rejected=rows,
        reason=RejectReason.REJECT_REASON_MALFORMED,
        message="m",
    )


def after_one(most=8, pause=0.25, ticket=0):
    """One batch was answered at 0, so that the next ones may wait."""
    answers = Answers(most, pause)
    answers.add(Acceptance(1, 5), ticket, ticket, 0.0)
    assert taken(answers, committed=ticket, now=0.0) == [(1, 1, 5, 0)]
    return answers


def taken(answers, committed=0, now=0.0):
    found = []
    while (result := answers.take(committed, now)) is not None:
        found.append((result.sequence, result.last_sequence, result.rows_accepted, result.reason))
    return found


def test_who_flushes_once_a_second_has_each_answer_at_once():
    answers = Answers(8, 0.25)
    for i in range(1, 20):
        answers.add(Acceptance(i, 5), 0, 0, float(i))
        assert taken(answers, now=float(i)) == [(i, i, 5, 0)]


def test_who_flushes_ten_times_a_second_has_some_answers_for_all_batches():
    answers, found = Answers(8, 0.25), []
    for i in range(1, 101):
        answers.add(Acceptance(i, 5), 0, 0, i / 10)
        found += taken(answers, now=i / 10)
    assert len(found) <= 40
    assert sum(rows for _, _, rows, _ in found) == 5 * found[-1][0]
    assert found[-1][0] >= 97


def test_the_last_answer_does_not_wait_for_another_batch():
    answers = after_one()
    answers.add(Acceptance(2, 5), 0, 0, 0.1)
    assert not answers.look(0.1)
    assert not taken(answers, now=0.1)
    assert answers.look(0.5)
    assert taken(answers, now=0.5) == [(2, 2, 5, 0)]
    assert not answers


def test_a_refusal_leaves_at_once_after_what_came_before_it():
    answers = after_one()
    answers.add(Acceptance(2, 5), 0, 0, 0.01)
    answers.add(refusal(3), 0, 0, 0.02)
    answers.add(Acceptance(4, 5), 0, 0, 0.03)
    malformed = RejectReason.REJECT_REASON_MALFORMED
    assert taken(answers, now=0.03) == [(2, 2, 5, 0), (3, 3, 0, malformed), (4, 4, 5, 0)]


def test_all_leave_before_a_worker_has_to_wait_for_one():
    answers = after_one(most=4)
    answers.add(Acceptance(2, 5), 0, 0, 0.01)
    assert not taken(answers, now=0.01)
    answers.add(Acceptance(3, 5), 0, 0, 0.02)
    assert taken(answers, now=0.02) == [(3, 3, 10, 0)]


def test_none_waits_where_only_one_may_be_unanswered():
    answers = Answers(1, 0.25)
    for i in range(1, 10):
        assert answers.room
        answers.add(Acceptance(i, 1), 0, 0, i / 1000)
        assert taken(answers, now=i / 1000) == [(i, i, 1, 0)]


def test_what_is_committed_does_not_wait_for_what_is_not():
    answers = Answers(8, 0.25)
    answers.add(Acceptance(1, 5), 7, 6, 0.0)
    answers.add(Acceptance(2, 5), 8, 6, 0.0)
    assert taken(answers, committed=7, now=0.0) == [(1, 1, 5, 0)]
    assert taken(answers, committed=8, now=0.0) == [(2, 2, 5, 0)]
    answers.add(Acceptance(3, 5), 9, 9, 0.1)
    answers.add(Acceptance(4, 5), 10, 9, 0.2)
    answers.look(1.0)
    assert taken(answers, committed=9, now=1.0) == [(3, 3, 5, 0)]
    assert taken(answers, committed=10, now=1.0) == [(4, 4, 5, 0)]


@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.floats(0, 0.6), st.integers(0, 3)), max_size=60),
)
def test_every_batch_is_answered_once_and_in_order(most, steps):
    answers = Answers(most, 0.25)
    now, ticket, committed, sequence, expected, found = 0.0, 0, 0, 0, [], []
    for accepted, rows, pause, lag in steps:
        now += pause
        committed = max(committed, ticket - lag)
        answers.look(now)
        found += taken(answers, committed, now)
        if not answers.room:
            continue
        sequence, ticket = sequence + 1, ticket + 1
        answers.add(Acceptance(sequence, rows) if accepted else refusal(sequence, rows), ticket, committed, now)
        expected.append((sequence, rows if accepted else 0))
        found += taken(answers, committed, now)
    answers.look(now + 1)
    found += taken(answers, ticket, now + 1)
    assert not answers
    assert answers.room
    at = 0
    for last, same, rows, reason in found:
        assert last == same
        covered = [each for each in expected if at < each[0] <= last]
        assert rows == sum(n for _, n in covered)
        # A refusal is said of one batch alone.
        assert len(covered) == 1 or not reason
        at = last
    assert at == sequence
