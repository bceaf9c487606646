"""Where a node's results are shared between runs, and under which key."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from flowpregel._core.digest import code_digest, digest_of, home_of
from flowpregel._core.effects import Effect, Look
from flowpregel._core.records import Arguments, Kind, Task, Write
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy


def space_of(name: str, functions: Sequence[Any], version: str | None = None) -> tuple[str, ...]:
    """Return the namespace of what *functions* return.

    Two functions share one only if they have the same home and the same code
    (or *version*) and close over equal values.

    Raises:
        ConfigurationError: A function closes over what has no content, such as a lock.
    """
    parts = [name]
    for function in functions:
        parts.extend(home_of(function))
        parts.append(code_digest(function, with_state=True) if version is None else version)
    return tuple(parts)


def look_up(
    tasks: Sequence[Task], default: CachePolicy | None
) -> Generator[Effect, Any, dict[str, Sequence[Write]]]:
    """Give tasks their keys, and return what other runs shared of them, by task id.

    A call has its own policy alone; *default* is the run's, for other tasks.
    """
    keyed = []
    for task in tasks:
        if task.node.cache is not None or (default is not None and task.kind is not Kind.CALL):
            task.cache_key = key_of(task, default)
            keyed.append((task.cache_key[:2], task))
    if not keyed:
        return {}
    found = yield Look(tuple({key for key, _ in keyed}))
    known: dict[str, Sequence[Write]] = {}
    for key, task in keyed:
        if key in found:
            task.cache_key = None
            known[task.id] = tuple(found[key])
    return known


def key_of(task: Task, default: CachePolicy | None) -> tuple[tuple[str, ...], str, float | None]:
    """Return under which namespace and key, and for how many seconds, *task* is shared.

    Args:
        task: A task of a node that has a cache policy, or takes *default*.
        default: The run's policy, for nodes that have none.

    Raises:
        ConfigurationError: The input has no content to make a key of.
    """
    policy = task.node.cache or default
    assert policy is not None
    made: Any
    if policy.key_func is None:
        made = None
        given = task.input
        if isinstance(given, Arguments):
            given = (given.args, dict(given.kwargs))
        key = digest_of(given, f"the input of {task.name!r}", strict=True)
    elif isinstance(task.input, Arguments):
        made = policy.key_func(*task.input.args, **task.input.kwargs)
    else:
        made = policy.key_func(task.input)
    if policy.key_func is not None:
        if not isinstance(made, str | bytes):
            raise ConfigurationError(
                f"the key_func of {task.name!r} returned {type(made).__qualname__}; "
                "a key is str or bytes"
            )
        key = digest_of(made, "a key", strict=True)
    return task.node.space, key, policy.ttl
