"""Whether a history of operations could have happened one after the other.

An operation takes effect at one moment between its call and its return. One whose
outcome is *unknown* (its process was killed, or its commit's answer was lost) took
effect at any moment after its call, or never. The search is Wing and Gong's, with what
it has tried kept in mind, so that no set of operations is looked at twice with the same
state of the object::

    called   a ├────────┤            may come first: a or b, not c
             b    ├──────────── ?    b need not come at all
             c             ├────┤

The histories of different objects are checked apart, and are short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Action: TypeAlias = tuple[Any, ...]
"""The name of what is done, and its arguments."""
Model: TypeAlias = Callable[[Hashable, Action], tuple[Hashable, Any]]
"""Returns the state of an object after an action, and what the action returns."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one object."""

    action: Action
    called: int
    returned: int | None = None
    """When its outcome was known; None: it is not."""
    result: Any = None
    """What it returned, if that is known."""


def is_linearizable(history: Sequence[Operation], model: Model) -> bool:
    """Return whether there is an order of *history* that explains all results.

    Args:
        history: The operations on one object, which begins with the state None.
        model: What they do.
    """
    needed = sum(
        1 << at for at, each in enumerate(history) if each.returned is not None
    )
    waiting: list[tuple[int, Hashable]] = [(0, None)]
    seen = set(waiting)
    while waiting:
        done, state = waiting.pop()
        if done & needed == needed:
            return True
        for at in _candidates(history, done):
            operation = history[at]
            after, result = model(state, operation.action)
            if operation.returned is not None and result != operation.result:
                continue
            following = done | 1 << at, after
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _candidates(history: Sequence[Operation], done: int) -> list[int]:
    """Return which operations may be the next: called before any of the others has
    returned.
    """
    left = [at for at in range(len(history)) if not done >> at & 1]
    returns = [
        each.returned for at in left if (each := history[at]).returned is not None
    ]
    earliest = min(returns, default=None)
    return [at for at in left if earliest is None or history[at].called <= earliest]


# ---------------------------------------------------------------- objects


def register(state: Hashable, action: Action) -> tuple[Hashable, Any]:
    """Return what becomes of an item: ``put value``, ``delete`` or ``get``."""
    match action:
        case ("put", value):
            return value, None
        case ("delete",):
            return None, None
    return state, state


def thread(state: Any, action: Action) -> tuple[Hashable, Any]:
    """Return what becomes of a thread's newest checkpoint: ``commit n``, ``delete`` or
    ``load``.
    """
    match action:
        case ("commit", number):
            return max(number, -1 if state is None else state), None
        case ("delete",):
            return None, None
    return state, state


def queue(state: Any, action: Action) -> tuple[Hashable, Any]:
    """Return what becomes of signals: ``send value`` or ``receive``, the oldest
    first.
    """
    waiting = () if state is None else state
    match action:
        case ("send", value):
            return (*waiting, value), None
    return waiting[1:], waiting[0] if waiting else None


MODELS: dict[str, Model] = {"item": register, "thread": thread, "signals": queue}
