"""The keys under which tasks share their results with other tasks and runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowpregel._core.effects import BUSY, CacheEntry, CacheKey
from flowpregel._core.ids import Preview, Span
from flowpregel._core.previews import arguments_preview
from flowpregel._core.records import (
    Arguments,
    CacheClaim,
    Outcome,
    Raised,
    Returned,
    Task,
)
from flowpregel._core.spelling import spelled_by_node
from flowpregel._pickling.digest import digest_of
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy


def claim_result(task: Task, policy: CachePolicy) -> None:
    """Set the key under which the result of *task* is shared.

    Raises:
        ConfigurationError: No key can be made from the content of the input.
    """
    key = task.node.space, _key_of(task, policy)
    task.attempt.cache = CacheClaim(key, policy.ttl)


def _key_of(task: Task, policy: CachePolicy) -> str:
    """Return the cache key that represents the input of *task*."""
    value = task.input
    if policy.key_func is not None:
        return _user_key_of(task, policy)
    if isinstance(value, Arguments):
        args, kwargs = spelled_by_node(task.node, value)
        content = args, dict(kwargs)
    else:
        content = (value,), {}
    return digest_of(content, f"the input of {task.name!r}", strict=True)


def _user_key_of(task: Task, policy: CachePolicy) -> str:
    """Return the key that the user's function makes from the input of *task*."""
    assert policy.key_func is not None
    value = task.input
    key: Any
    if isinstance(value, Arguments):
        key = policy.key_func(*value.args, **value.kwargs)
    else:
        key = policy.key_func(value)
    if not isinstance(key, str | bytes):
        raise ConfigurationError(
            f"the key_func of {task.name!r} returned {type(key).__qualname__}; "
            "a key is str or bytes"
        )
    return digest_of(key, "a key", strict=True)


def claimed_keys(tasks: Iterable[Task]) -> dict[CacheKey, None]:
    """Return the cache keys of *tasks*, in order and without duplicates."""
    keys: dict[CacheKey, None] = {}
    for task in tasks:
        if task.attempt.cache is not None:
            keys[task.attempt.cache.key] = None
    return keys


def shared_outcome(
    task: Task,
    entries: dict[CacheKey, Any],
    now: int,
) -> Outcome | None:
    """Return the outcome that the cache has for *task*, if there is one.

    If there is none, the first task with a given key computes the result. The other
    tasks with that key wait for it: their claims are marked as busy.

    Args:
        task: The task that needs the result.
        entries: The reply for each key: the stored writes, a `Raised` if the lookup
            failed, or `BUSY`.
        now: The present time in wall-clock nanoseconds.
    """
    claim = task.attempt.cache
    if claim is None:
        return None
    writes = entries.get(claim.key)
    entries.setdefault(claim.key, BUSY)
    claim.is_busy = writes is BUSY and not _is_within(task, claim.key)
    if writes is None or writes is BUSY:
        return None
    # The task has no claim on the result: the result exists, or could not be looked up.
    task.attempt.cache = None
    if isinstance(writes, Raised):
        return writes
    preview = Preview(arguments_preview(task))
    task.attempt.span = Span(now, 0.0, "cache", preview=preview)
    return Returned(tuple(writes))


def entry_to_share(
    task: Task, claim: CacheClaim, outcome: Outcome
) -> CacheEntry | None:
    """Return the entry that the cache gets for a task that has ended with *outcome*.
    Return None if the task has no result: then its *claim* on the key is only released.
    """
    if not isinstance(outcome, Returned):
        return None
    writes = claim.writes or task.attempt.writes
    return writes, claim.ttl


def _is_within(task: Task, key: CacheKey) -> bool:
    """Return whether a caller of *task*, direct or indirect, computes the result of
    *key*.

    If so, *task* must not wait for that result, because its caller waits for *task*.
    """
    caller = task.parent
    while caller is not None:
        claim = caller.attempt.cache
        if claim is not None and claim.key == key:
            return True
        caller = caller.parent
    return False
