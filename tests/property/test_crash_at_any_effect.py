"""A run that is dropped at any effect goes on to the end it would have had."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel._core.records import Durability
from tests.property.histories import Thread
from tests.strategies import Recipe, example_count, recipes

APART = 8 if settings.default.max_examples < 100 else 1
"""Each crash is a run of its own: the daily tests crash at one effect in eight of each
program.
"""
some = settings(max_examples=example_count(10))
MODES = [Durability.SYNC, Durability.ASYNC]


@some
@given(recipes(), st.sampled_from(MODES), st.integers(0, 7), st.integers(0, APART - 1))
def test_a_crash_at_any_effect_then_a_resume_ends_as_if_nothing_had_happened(
    recipe: Recipe, durability: Durability, seed: int, first: int
) -> None:
    """The output, every checkpoint, and the order of versions are those of the
    undisturbed run.
    """
    whole = Thread(recipe, durability, seed)
    history = whole.to_its_end().history()

    for effect in range(first, whole.performed + 1, APART):
        thread = Thread(recipe, durability, seed).to_its_end(iter((effect,)))

        assert history == thread.history(), effect
        assert [] == thread.driver.seen.run_again(), effect


@given(
    recipes(), st.lists(st.integers(0, 12), min_size=2, max_size=5), st.integers(0, 7)
)
def test_crashes_during_the_recovery_from_crashes_change_nothing_either(
    recipe: Recipe, gaps: list[int], seed: int
) -> None:
    """Each crash comes some effects after the one before it."""
    whole = Thread(recipe, Durability.SYNC, seed)
    at = accumulate(gaps)

    thread = Thread(recipe, Durability.SYNC, seed).to_its_end(at)

    assert whole.to_its_end().history() == thread.history()
    assert [] == thread.driver.seen.run_again()


@some
@given(recipes(), st.integers(0, 7), st.integers(0, APART - 1))
def test_with_durability_exit_a_crash_costs_the_run_and_nothing_else(
    recipe: Recipe, seed: int, first: int
) -> None:
    """What an earlier run of the thread committed as it left is not run again."""
    whole = Thread(recipe, Durability.EXIT, seed)
    end = whole.to_its_end().history()[0]["values"]

    for effect in range(first, whole.performed + 1, APART):
        thread = Thread(recipe, Durability.EXIT, seed).to_its_end(iter((effect,)))

        assert end == thread.history()[0]["values"], effect
        assert [] == thread.driver.seen.run_again(), effect
