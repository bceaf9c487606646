"""Values that a node reads like channels and that the run computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Generic, TypeVar, get_args

__all__ = [
    "IsLastStep",
    "IsLastStepManager",
    "ManagedValue",
    "RemainingSteps",
    "RemainingStepsManager",
    "is_managed_value",
    "managed_value",
]

Value = TypeVar("Value", covariant=True)


class ManagedValue(ABC, Generic[Value]):
    """A value that is computed from the position of a run, never stored or written.

    Put the subclass itself into a program's channels or a state's annotations; it is
    never instantiated.

    Example:
        >>> class Progress(ManagedValue[float]):
        ...     @staticmethod
        ...     def get(step: int, stop: int) -> float:
        ...         return step / stop
        >>> Progress.get(1, 4)
        0.25
    """

    @staticmethod
    @abstractmethod
    def get(step: int, stop: int) -> Value:
        """Return the value.

        Args:
            step: The number of the superstep that runs.
            stop: The number of the first superstep that the recursion limit forbids.
        """


class IsLastStepManager(ManagedValue[bool]):
    """True if the recursion limit allows no superstep after this one.

    Example:
        >>> [IsLastStepManager.get(step, stop=25) for step in (23, 24)]
        [False, True]
    """

    @staticmethod
    def get(step: int, stop: int) -> bool:
        """Return whether this superstep is the last."""
        return step == stop - 1


class RemainingStepsManager(ManagedValue[int]):
    """The number of supersteps that the recursion limit allows, including this one.

    Example:
        >>> RemainingStepsManager.get(step=24, stop=25)
        1
    """

    @staticmethod
    def get(step: int, stop: int) -> int:
        """Return the number of remaining supersteps."""
        return stop - step


IsLastStep = Annotated[bool, IsLastStepManager]
"""The annotation of a state key that is True in the last allowed superstep."""

RemainingSteps = Annotated[int, RemainingStepsManager]
"""The annotation of a state key that counts the remaining supersteps, including the
present superstep.
"""


def managed_value(declared: Any) -> type[ManagedValue[Any]] | None:
    """Return the managed value in the declaration of a channel or state key: *declared*
    itself or a part of that annotation. Return None if there is none.

    Example:
        >>> from flowpregel.managed import RemainingSteps, RemainingStepsManager
        >>> managed_value(RemainingSteps) is RemainingStepsManager
        True
    """
    annotations = getattr(declared, "__metadata__", ())
    for part in (declared, *annotations, *get_args(declared)):
        if isinstance(part, type) and issubclass(part, ManagedValue):
            return part
    return None


def is_managed_value(declared: Any) -> bool:
    """Return whether *declared* is a managed value, or is annotated with one.

    Example:
        >>> from flowpregel.managed import RemainingSteps
        >>> is_managed_value(RemainingSteps), is_managed_value(int)
        (True, False)
    """
    return managed_value(declared) is not None
