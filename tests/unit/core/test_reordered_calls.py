"""Equal calls whose records are used in another order than theirs."""

from __future__ import annotations

from flowpregel._core.equal_calls import MOST_LATER, ReorderedCalls

QUESTION = ("late", "digest")


def test_a_call_may_be_answered_by_any_unused_later_record() -> None:
    """Up to a bound, so that an edit of many equal calls is not looked up for each."""
    calls = ReorderedCalls()

    assert [*range(1, MOST_LATER + 1)] == list(calls.candidates(QUESTION, 0))


def test_the_record_that_was_passed_over_is_the_first_candidate_of_the_next_call() -> (
    None
):
    """And the one that was used ahead is none any more."""
    calls = ReorderedCalls()
    calls.take(QUESTION, 0, 2)

    assert calls.is_taken(QUESTION, 2)
    assert [0, 3, 4] == list(calls.candidates(QUESTION, 1))[:3]
    calls.take(QUESTION, 1, 0)
    assert [3, 4] == list(calls.candidates(QUESTION, 1))[1:3]


def test_a_call_whose_own_record_is_taken_has_one_that_was_passed_over() -> None:
    """Each record answers one call, whatever its code."""
    calls = ReorderedCalls()
    calls.take(QUESTION, 0, 1)

    assert calls.is_taken(QUESTION, 1)
    assert 0 == calls.take_skipped(QUESTION)
    assert [2] == list(calls.candidates(QUESTION, 1))[:1]
