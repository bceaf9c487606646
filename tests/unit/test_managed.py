"""Managed values: worked out from where a run stands, and found in annotations."""

from typing import Annotated, Any

import pytest

from flowpregel.channels import LastValue
from flowpregel.managed import (
    IsLastStep,
    IsLastStepManager,
    ManagedValue,
    RemainingSteps,
    RemainingStepsManager,
    is_managed_value,
    managed_value,
)


@pytest.mark.parametrize(
    ("step", "stop", "last", "remaining"),
    [
        (0, 1, True, 1),
        (0, 2, False, 2),
        (1, 2, True, 1),
        (2, 2, False, 0),
        (-1, 3, False, 4),
    ],
)
def test_they_tell_how_far_the_run_may_go(
    step: int, stop: int, last: bool, remaining: int
) -> None:
    assert last is IsLastStepManager.get(step, stop)
    assert remaining == RemainingStepsManager.get(step, stop)


class Own(ManagedValue[int]):
    @staticmethod
    def get(step: int, stop: int) -> int:
        return stop


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        (IsLastStep, IsLastStepManager),
        (RemainingSteps, RemainingStepsManager),
        (RemainingStepsManager, RemainingStepsManager),
        (Annotated[int, "other", Own], Own),
        (Own, Own),
        (int, None),
        (Annotated[int, "other"], None),
        (list[int], None),
        (LastValue(int), None),
        (None, None),
    ],
)
def test_they_are_found_bare_and_in_annotations(declared: Any, found: Any) -> None:
    assert found is managed_value(declared)
    assert (found is not None) is is_managed_value(declared)


def test_there_are_no_instances_of_the_abstract_one() -> None:
    with pytest.raises(TypeError):
        ManagedValue()  # type: ignore[abstract]
