"""What a run leaves depends on its program and its input, never on which task ends
first.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowpregel._core.records import Durability
from tests.property.histories import Thread
from tests.strategies import Recipe, recipes


@settings(max_examples=settings.default.max_examples)
@given(recipes(), st.lists(st.integers(0, 1_000), min_size=1, max_size=4))
def test_any_order_of_completions_gives_the_same_checkpoints(
    recipe: Recipe, seeds: list[int]
) -> None:
    """Values, the order of versions and what was seen are those of tasks that end in
    turn.
    """
    in_turn = Thread(recipe, Durability.SYNC, None).to_its_end().history()

    for seed in seeds:
        assert in_turn == Thread(recipe, Durability.SYNC, seed).to_its_end().history()


@settings(max_examples=settings.default.max_examples)
@given(recipes(), st.integers(0, 1_000))
def test_every_durability_mode_ends_with_the_same_values(
    recipe: Recipe, seed: int
) -> None:
    """What is kept when differs between the modes; what comes out does not."""
    ends = [
        Thread(recipe, durability, seed).to_its_end().history()[0]["values"]
        for durability in Durability
    ]

    assert ends[0] == ends[1] == ends[2]
