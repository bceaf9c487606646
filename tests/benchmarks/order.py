"""Which rows there are, in the order of the goals, and how they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmarks import workloads
from tests.benchmarks.model import Workload


def everything(*, quick: bool) -> list[Workload]:
    """Return all workloads."""
    return [
        each for module in workloads.ALL for each in workloads.of(module, quick=quick)
    ]


def names() -> list[str]:
    """Return the name of each row, in the order of the goals."""
    return [row.name for each in everything(quick=False) for row in each.rows]


def is_asked(name: str, asked: Iterable[str]) -> bool:
    """Say whether a row is among those asked for: ``W1`` asks for W1a, but not for
    W10.
    """
    return any(
        # A name that ends in a digit stands for no longer number.
        re.match(rf"{re.escape(each)}(?!(?<=[0-9])[0-9])", name, re.IGNORECASE)
        is not None
        for each in asked
    )


def chosen(asked: Sequence[str], *, quick: bool) -> list[Workload]:
    """Return the workloads with a row that was asked for; all if nothing was asked for.

    Raises:
        LookupError: A name fits no row.
    """
    found = everything(quick=quick)
    for name in asked:
        if not any(is_asked(row.name, [name]) for each in found for row in each.rows):
            raise LookupError(
                f"no row is called {name!r}; there are {', '.join(names())}"
            )
    if not asked:
        return found
    return [
        each for each in found if any(is_asked(row.name, asked) for row in each.rows)
    ]


def sorted_rows(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows in the order of the goals, without those that are no more."""
    return {name: rows[name] for name in names() if name in rows}
