"""Parts of the tables of mistakes: what is tried in them, and in what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from flowpregel import func

# Untyped: a type checker would find many of the mistakes.
task: Any = func.task
entrypoint: Any = func.entrypoint

Mistake: TypeAlias = tuple[Callable[[], object], type[BaseException], str]
"""A program, the type of its error, and a part of the message, `...` for any text."""


def one(n: Any) -> Any:
    """Return *n*: a function of which nodes, tasks and workflows are made."""
    return n


@task
def double(n: Any) -> Any:
    """Return twice *n*."""
    return 2 * n


def inside(use: Callable[[], Any], **options: Any) -> Any:
    """Run *use* as the body of a workflow; its tasks run in this process."""

    @entrypoint(**{"executor": "inline", **options})
    def flow(n: int) -> Any:
        return use()

    return flow.run(1)
