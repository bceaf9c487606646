"""Facts about a thread that are found by loading earlier checkpoints.

This module is for savers that cannot read these facts from records of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import (
    MADE_BY,
    UNKNOWN_CODE,
    Address,
    Checkpoint,
    MadeBy,
    Saved,
    Version,
)


def greatest_version(newest_first: Iterable[Saved]) -> tuple[Version, ...]:
    """Return the greatest version of any channel in a thread's namespace, in a tuple,
    which is empty if there is none.

    A new version must be greater. Some savers merely count versions, so that without
    this rule a version in another branch might be the same but belong to another value.

    Args:
        newest_first: The checkpoints. They are read up to the first that is not a copy
            of an earlier one, as only copies have no new versions.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.checkpoint.base import Address
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> newest, oldest = saver.history(Address("1"))
        >>> greatest_version([newest, oldest]) > greatest_version([oldest])
        True
    """
    greatest: tuple[Any, ...] = ()
    for saved in newest_first:
        versions: Any = saved.checkpoint.channel_versions.values()
        known = sorted((*greatest, *versions))
        greatest = tuple(known[-1:])
        if saved.checkpoint.source != "fork":
            break
    return greatest


def node_results_by_parents(
    load: Callable[[Address], Saved | None], address: Address
) -> Iterator[tuple[str | None, AttemptRecord]]:
    """Yield attempts as `BaseCheckpointSaver.node_results` does. They are read
    backwards, from the checkpoint at *address* to the run's input.

    Args:
        load: A function that returns a checkpoint.
        address: The checkpoint.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.checkpoint.base import Address
        >>> saver = InMemorySaver()
        >>> @entrypoint(checkpointer=saver)
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> double.run(4, id="1")
        8
        >>> attempts = node_results_by_parents(saver.load, Address("1"))
        >>> [attempt.name for _, attempt in attempts]
        ['double']
    """
    saved = load(address)
    made_by = UNKNOWN_CODE
    is_edit = False
    while saved is not None:
        checkpoint = saved.checkpoint
        # If the child of this checkpoint, which was visited before, is an edit of the
        # state by a user, it does not contain what the tasks of this checkpoint wrote.
        # So these tasks are not yielded.
        if not is_edit:
            yield from _ends_on(saved, made_by)
        made_by = MadeBy(*checkpoint.metadata.get(MADE_BY, UNKNOWN_CODE))
        is_first = checkpoint.source == "input" or made_by.is_whole
        if made_by.at_exit:
            yield from zip(repeat(None), made_by.attempts())
            made_by = UNKNOWN_CODE
        is_edit = checkpoint.source in ("update", "fork")
        saved = None if is_first else _parent_of(load, saved.address, checkpoint)


def _parent_of(
    load: Callable[[Address], Saved | None], address: Address, checkpoint: Checkpoint
) -> Saved | None:
    parent = checkpoint.parent_id
    return None if parent is None else load(replace(address, checkpoint_id=parent))


def _ends_on(saved: Saved, made_by: MadeBy) -> Iterator[tuple[str, AttemptRecord]]:
    """Yield the attempts of the nodes that started from a checkpoint, each with its id.

    Args:
        saved: The checkpoint. If a node ran again later, this checkpoint still has the
            attempt record of the first run.
        made_by: The nodes that made the next checkpoint.
    """
    attempts = made_by.attempts()
    names = {attempt.name for attempt in attempts}
    attempts += [attempt for _, _, attempt in saved.ran if attempt.name not in names]
    for attempt in attempts:
        yield saved.checkpoint.id, attempt
