"""Values that a node reads like channels and the run works out: how far it still may
go.
"""

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
    """A value that is worked out from where a run stands; it is not stored, nor
    written.

    A subclass stands in a program's channels, or in a state's annotations, as it
    is: there is no instance of it.

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
            stop: The number of the first one that the recursion limit forbids.
        """


class IsLastStepManager(ManagedValue[bool]):
    """Whether the recursion limit allows no superstep after this one."""

    @staticmethod
    def get(step: int, stop: int) -> bool:
        """Return whether this superstep is the last."""
        return step == stop - 1


class RemainingStepsManager(ManagedValue[int]):
    """How many supersteps the recursion limit allows, this one included."""

    @staticmethod
    def get(step: int, stop: int) -> int:
        """Return the number of supersteps left."""
        return stop - step


IsLastStep = Annotated[bool, IsLastStepManager]
"""Annotates a state key: whether this superstep is the last that is allowed."""

RemainingSteps = Annotated[int, RemainingStepsManager]
"""Annotates a state key: how many supersteps are left, this one included."""


def managed_value(declared: Any) -> type[ManagedValue[Any]] | None:
    """Return the managed value that *declared* is, or is annotated with, or None.

    Example:
        >>> managed_value(RemainingSteps) is RemainingStepsManager
        True
    """
    for part in (declared, *getattr(declared, "__metadata__", ()), *get_args(declared)):
        if isinstance(part, type) and issubclass(part, ManagedValue):
            return part
    return None


def is_managed_value(declared: Any) -> bool:
    """Return whether *declared* is a managed value, or is annotated with one."""
    return managed_value(declared) is not None
