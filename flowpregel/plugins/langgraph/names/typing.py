"""Type variables with which packages annotate graphs, and sentinels of LangGraph."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

# These classes replace Python's own: TypeVar has no defaults before Python 3.13, and
# pydantic does not accept Python's TypedDict before 3.12.
from typing_extensions import TypedDict, TypeVar

__all__ = [
    "EMPTY_SEQ",
    "MISSING",
    "ContextT",
    "ContextT_contra",
    "DeprecatedKwargs",
    "InputT",
    "NodeInputT",
    "NodeInputT_contra",
    "OutputT",
    "StateLike",
    "StateT",
    "StateT_co",
    "StateT_contra",
]

StateLike: TypeAlias = Any
"""The types of states: a TypedDict, a dataclass or a pydantic model."""

StateT = TypeVar("StateT")
StateT_co = TypeVar("StateT_co", covariant=True)
StateT_contra = TypeVar("StateT_contra", contravariant=True)
ContextT = TypeVar("ContextT", default=None)
ContextT_contra = TypeVar("ContextT_contra", contravariant=True, default=None)
InputT = TypeVar("InputT", default=StateT)
OutputT = TypeVar("OutputT", default=StateT)
NodeInputT = TypeVar("NodeInputT")
NodeInputT_contra = TypeVar("NodeInputT_contra", contravariant=True)

MISSING: Final = object()
EMPTY_SEQ: tuple[str, ...] = ()


class DeprecatedKwargs(TypedDict):
    """The keyword arguments that LangGraph's functions no longer accept."""
