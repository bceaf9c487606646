"""Briefly: what is alike in the small tasks of a batch, and in their results, is said once.

::

    coordinator -- TASKS  first, those like it, another, those like it ... --> worker
                <-- RESULTS  number, number, ... -----------------------------

Tasks that are like the first of their kind in the batch are sent together, as what only
they have: their numbers, ids, paths and arguments. A result that is a number, or nothing,
is one of a list.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from struct import Struct
from typing import Any, Final, TypeAlias

from flowpregel._core.records import Arguments, Outcome, Returned, Write
from flowpregel.carried import carried_by, may_carry
from flowpregel.context import TaskInfo
from flowpregel.executors.base import Job
from flowpregel.executors.processes import messages, sent_ahead, serialization
from flowpregel.executors.processes.serialization import SHARE_FROM

# ------------------------------------------------ tasks, down

TASK: Final = Struct("<IQB")
"""Before each part of a TASKS frame: the number of its task, its length in bytes, its form."""
FULL: Final = 0
"""The digest of its node, and a parcel."""
FIRST: Final = 1
"""The same; those behind it may be like it."""
LIKE: Final = 2
"""Several tasks that are like the last FIRST one, but for what is said here: for each its
number, its id, its path and its arguments, in one list."""

_OWN: Final = ("task_id", "namespace", "path")
_common: Final = attrgetter(*(name for name in messages.INFO_FIELDS if name not in _OWN), "run")
_around: Final = attrgetter("kind", "store", "control", "channels", "managed")
_are_numbers: Final = sent_ahead.PLAIN.issuperset
_LONG: Final = SHARE_FROM // 4
"""Characters up to which the text of a task never takes so many bytes that it is shared."""


class Likeness:
    """The coordinator's: gathers the tasks of a batch that are like one before them."""

    def __init__(self) -> None:
        self._digest: bytes | None = None
        self._common: tuple[Any, ...] = ()
        self._around: tuple[Any, ...] = ()
        self._space, self._has_id = "", False
        self._may_carry = False
        self._gathered: list[Any] = []
        self._parts: list[bytes] = []
        self._length = 0

    def begin(self, job: Job, digest: bytes, sent: sent_ahead.Sent | None) -> int:
        """Return the form of *job*, which is sent in full, as what was *sent* ahead goes."""
        info, config = job.info, job.info.run.values.config
        carries = carried_by(job.variables, config) is not None
        if sent is None or carries or not sent_ahead.is_plain_call(job):
            self._digest = None
            return FULL
        self._may_carry = may_carry(config)
        self._digest = digest
        self._space, self._has_id = space_of(info)
        self._common, self._around = _common(info), _around(job)
        return FIRST

    def gather(self, number: int, job: Job, digest: bytes) -> bool:
        """Take *job* to those that are like the first; False: it must be sent in full."""
        given, info = job.input, job.info
        if (
            digest is not self._digest
            or _common(info) != self._common
            or _around(job) != self._around
            or info.namespace != (self._space + info.task_id if self._has_id else self._space)
            or type(given) is not Arguments
            or given.kwargs
            or not (_are_numbers(map(type, given.args)) or self._has_room_for(given.args))
            or (self._may_carry and carried_by(job.variables, info.run.values.config) is not None)
        ):
            return False
        self._gathered += number, info.task_id, info.path, given.args
        return True

    def _has_room_for(self, args: tuple[Any, ...]) -> bool:
        """Return whether all of *args* are numbers, or text that is not too long."""
        if not sent_ahead.PLAIN_INPUT.issuperset(map(type, args)):
            return False
        length = sum(len(each) for each in args if type(each) in (str, bytes))
        if length > _LONG:
            return False
        self._length += length
        if self._length > SHARE_FROM:
            # The worker has a whole part in its memory.
            self._close_part()
            self._length = length
        return True

    def take(self) -> list[bytes]:
        """Return what is sent of those that were gathered since, and forget them."""
        self._close_part()
        parts, self._parts, self._length = self._parts, [], 0
        return parts

    def _close_part(self) -> None:
        if self._gathered:
            data = pickle.dumps(self._gathered, serialization.PROTOCOL)
            self._parts += TASK.pack(0, len(data), LIKE), data
            self._gathered = []


def space_of(info: TaskInfo) -> tuple[str, bool]:
    """Return what is alike in the namespaces of tasks like *info*, and whether its id follows."""
    return info.namespace.removesuffix(info.task_id), info.namespace.endswith(info.task_id)


# ------------------------------------------------ results, up

Result: TypeAlias = tuple[int, float, int, str, Any]
"""Of a task that made one write, of a number or nothing: its number, for how many seconds it
ran, when it began (wall-clock nanoseconds), and the write."""


def plain_write(outcome: Outcome) -> Write | None:
    """Return the write of a task that made just one, of a number or nothing."""
    if type(outcome) is Returned:
        writes = outcome.writes
        if len(writes) == 1 and type(writes[0][1]) in sent_ahead.PLAIN:
            return writes[0]
    return None


def pack_results(results: Iterable[Result]) -> bytes:
    """Return the body of a `RESULTS` frame."""
    # As one list: a tuple for each would take a third of the time.
    return pickle.dumps([*chain.from_iterable(results)], serialization.PROTOCOL)


def unpack_results(body: bytes) -> Iterator[Result]:
    """Return what `pack_results` was given.

    Raises:
        Exception: Not all of it is there, or it is something else.
    """
    values = iter(pickle.loads(body))
    return zip(values, values, values, values, values, strict=True)
