"""Checkpoints as people name them: by step, by id, or by the beginning of an id."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from flowpregel.cli.stores import newest
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._core.records import Saved
    from flowpregel.checkpoint.lmdb import LMDBSaver

_STEP = re.compile(r"-?\d{1,7}")


def find(saver: LMDBSaver, thread_id: str, name: str | None) -> Saved:
    """Return a checkpoint of a thread: the newest if *name* is None.

    Args:
        saver: The open store.
        thread_id: Whose.
        name: A step (``3``; the newest checkpoint of that step), an id, or the
            beginning of an id that no other has.

    Raises:
        ConfigurationError: There is none, or more than one.
    """
    from flowpregel._core.records import Address  # noqa: PLC0415 - keeps --help fast

    latest = newest(saver, thread_id)
    if name is None:
        return latest
    exact = saver.load(Address(thread_id, "", name))
    if exact is not None:
        return exact
    history = saver.history(Address(thread_id))
    if _STEP.fullmatch(name):
        found = [*islice((each for each in history if each.checkpoint.step == int(name)), 1)]
    else:
        matching = (s for s in history if s.checkpoint.id.startswith(name))
        found = [*islice(matching, 2)]
    if not found:
        raise ConfigurationError(
            f"thread {thread_id!r} has no checkpoint {name!r}; `flowpregel history` lists them"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"several checkpoints of thread {thread_id!r} begin with {name!r}; give more of the id"
        )
    return found[0]
