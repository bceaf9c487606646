"""The key under which the result of a task is shared with other runs."""

from __future__ import annotations

from typing import Any

from flowpregel._core.digest import digest_of
from flowpregel._core.records import Arguments, Task
from flowpregel._core.spelling import spelled_by_node
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy


def ask_cache(task: Task, policy: CachePolicy) -> None:
    """Give *task* the key under which its result is shared.

    Raises:
        ConfigurationError: The input has no content to make a key of.
    """
    task.cache_key = (task.node.space, _key_of(task, policy), policy.ttl)


def _key_of(task: Task, policy: CachePolicy) -> str:
    args, kwargs = (task.input,), dict[str, Any]()
    if isinstance(task.input, Arguments):
        args, kwargs = task.input.args, dict(task.input.kwargs)
    if policy.key_func is None:
        if isinstance(task.input, Arguments):
            args, named = spelled_by_node(task.node, task.input)
            kwargs = dict(named)
        return digest_of((args, kwargs), f"the input of {task.name!r}", strict=True)
    made: Any = policy.key_func(*args, **kwargs)
    if not isinstance(made, str | bytes):
        raise ConfigurationError(
            f"the key_func of {task.name!r} returned {type(made).__qualname__}; "
            "a key is str or bytes"
        )
    return digest_of(made, "a key", strict=True)


def is_within(task: Task, key: Any) -> bool:
    """Return whether *key* is computed by a caller of *task*, which must not wait for
    it.
    """
    caller = task.parent
    while caller is not None and (
        caller.cache_key is None or caller.cache_key[:2] != key
    ):
        caller = caller.parent
    return caller is not None
