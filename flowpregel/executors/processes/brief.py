"""Briefly: what is alike in the small tasks of a batch, and in their results, is said once.

::

    coordinator -- TASKS  first, like it, like it ... --> worker
                <-- RESULTS  number, number, ... --------

A task that is like the first of its kind in the batch is sent as what only it has: its
id, its namespace, its path and its arguments. A result that is a number, or nothing, is
one of a list.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from operator import attrgetter
from struct import Struct
from typing import Any, Final, TypeAlias

from flowpregel._core.records import Arguments, Kind, Node, Outcome, Returned, Write
from flowpregel.carried import carried_by, may_carry
from flowpregel.context import TaskInfo
from flowpregel.executors.base import Job
from flowpregel.executors.processes import messages, parcel, payload
from flowpregel.runinfo import RunInfo

# ------------------------------------------------ tasks, down

TASK: Final = Struct("<IQB")
"""Before each task in a TASKS frame: its number, its length in bytes, and its form."""
FULL: Final = 0
"""The digest of its node, and a parcel."""
FIRST: Final = 1
"""The same; those behind it may be like it."""
LIKE: Final = 2
"""It is like the last FIRST one, but for what is said here."""

_OWN: Final = ("task_id", "namespace", "path")
_common: Final = attrgetter(*(name for name in messages.INFO_FIELDS if name not in _OWN), "run")
_around: Final = attrgetter("kind", "store", "control", "channels", "managed")
_MIDDLE: Final = messages.INFO_FIELDS.index("path") - len(("task_id", "name", "namespace"))
"""How many of a task's values stand between its namespace and its path."""


NewRun: TypeAlias = Callable[[], RunInfo]
_Alike: TypeAlias = tuple[int, Kind, str, tuple[Any, ...], tuple[Any, ...], bool]
"""The number of the run, the kind, the name, the values between namespace and path, those
after the path, and whether there is a store."""


class Likeness:
    """The coordinator's: tells which tasks of a batch are like one before them."""

    def __init__(self) -> None:
        self._digest: bytes | None = None
        self._common: tuple[Any, ...] = ()
        self._around: tuple[Any, ...] = ()
        self._may_carry = False

    def begin(self, job: Job, digest: bytes, sent: messages.Sent | None) -> int:
        """Return the form of *job*, which is sent in full, as what was *sent* ahead goes."""
        config = job.info.run.values.config
        carries = carried_by(job.variables, config) is not None
        if sent is None or carries or not messages.is_plain_call(job):
            self._digest = None
            return FULL
        self._may_carry = may_carry(config)
        self._digest, self._common, self._around = digest, _common(job.info), _around(job)
        return FIRST

    def pack(self, job: Job, digest: bytes) -> bytes | None:
        """Return *job* as what it has alone; None: it must be sent in full."""
        given, info = job.input, job.info
        if (
            digest is not self._digest
            or _common(info) != self._common
            or _around(job) != self._around
            or type(given) is not Arguments
            or given.kwargs
            or not messages.PLAIN_INPUT.issuperset(map(type, given.args))
            or (self._may_carry and carried_by(job.variables, info.run.values.config) is not None)
        ):
            return None
        own = info.task_id, info.namespace, info.path, given.args
        data = pickle.dumps(own, payload.PROTOCOL)
        return data if len(data) < parcel.SHARE_FROM else None


class First:
    """The worker's: a task that others are like.

    Args:
        order: What was sent of it: the digest of its node, and its parcel.
    """

    def __init__(self, order: bytes) -> None:
        self._order = order
        self._alike: _Alike | None = None
        self.digest = order[: payload.DIGEST_SIZE]
        """Names the node of all of them."""

    def job_like(
        self, own: bytes | memoryview, node: Node, store: Any, runs: Mapping[int, NewRun]
    ) -> Job:
        """Return the job that was sent as what it has alone.

        Args:
            own: What was sent.
            node: What to call.
            store: What stands for the run's store, if it has one.
            runs: Makes what was sent ahead, by number.
        """
        if self._alike is None:
            self._alike = self._unpack()
        sent, kind, name, middle, end, has_store = self._alike
        task_id, namespace, path, args = pickle.loads(own)
        known: tuple[Any, ...] = (task_id, name, namespace, *middle, path, *end, runs[sent]())
        given = Arguments(args, {})
        return Job(TaskInfo(*known), kind, node, given, None, {}, {}, store if has_store else None)

    def _unpack(self) -> _Alike:
        content = parcel.unpack(self._order, None, payload.DIGEST_SIZE)
        sent, info, kind, *_, has_store, _, _ = content
        _, name, _, *rest = info
        middle, end = tuple(rest[:_MIDDLE]), tuple(rest[_MIDDLE + 1 :])
        return sent, messages.KINDS[kind], name, middle, end, has_store


# ------------------------------------------------ results, up

Result: TypeAlias = tuple[int, float, int, str, Any]
"""Of a task that made one write, of a number or nothing: its number, for how many seconds it
ran, when it began (wall-clock nanoseconds), and the write."""


def plain_write(outcome: Outcome) -> Write | None:
    """Return the write of a task that made just one, of a number or nothing."""
    if type(outcome) is Returned and len(outcome.writes) == 1:
        write = outcome.writes[0]
        if type(write[1]) in messages.PLAIN:
            return write
    return None


def pack_results(results: list[Result]) -> bytes:
    """Return the body of a `RESULTS` frame."""
    return pickle.dumps(results, payload.PROTOCOL)


def unpack_results(body: bytes) -> list[Result]:
    """Return what `pack_results` was given."""
    results: list[Result] = pickle.loads(body)
    return results
