"""Which failed calls an error goes back to, also when it is a copy that came from a worker."""

from __future__ import annotations

from collections.abc import Iterable

_MARK = "__flowpregel_calls__"


def blame(error: BaseException, calls: Iterable[str]) -> None:
    """Note on *error* that these calls failed with it."""
    # Not setattr, which the error's class may refuse.
    error.__dict__[_MARK] = {*error.__dict__.get(_MARK, ()), *calls}


def blamed(error: BaseException) -> set[str]:
    """Return the calls that failed with *error*, or with one that led to it."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        found.update(link.__dict__.get(_MARK, ()))
        waiting += (link.__cause__, link.__context__)
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
    return found
