"""What the tasks of a run may know about it, sent to a worker once, ahead of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

from flowpregel._core.records import Arguments, Node
from flowpregel.executors.base import Job
from flowpregel.executors.processes import messages, serialization
from flowpregel.executors.processes.serialization import BufferWriter, Message, Open, unpack
from flowpregel.runinfo import RunInfo, RunValues

PLAIN: Final = frozenset({int, float, bool, type(None)})
"""Of these, a pickle is exact and small, and is not looked through."""
PLAIN_INPUT: Final = PLAIN | {str, bytes}
_LARGEST_RUN: Final = 64 << 10
"""Bytes up to which what a run's tasks know about it is sent ahead of them."""
_run_numbers: Final = count(1)
NewRun = Callable[[], RunInfo]


class Sent(NamedTuple):
    """What the tasks of a run know about it, as it is sent ahead of them."""

    number: int
    """Names it, once in the life of this process."""
    data: bytes


def pack_run(run: RunInfo) -> Sent | None:
    """Return *run* as it is sent once to each worker; None: it travels with each task."""
    if run.sent is None:
        try:
            values = serialization.dumps(tuple(run.values))
            data = serialization.dumps((run.thread_id, run.run_id, run.has_saver, values))
        except Exception:  # noqa: BLE001 - told by the task that it then travels with
            data = bytes(_LARGEST_RUN + 1)
        run.sent = False if len(data) > _LARGEST_RUN else Sent(next(_run_numbers), data)
    return run.sent or None


def unpack_run(data: bytes) -> NewRun:
    """Return what makes a `RunInfo` for each task: none sees what another changes in its own.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    thread_id, run_id, has_saver, packed = serialization.loads(data)

    def values() -> RunValues:
        return RunValues(*serialization.loads(packed))

    values()
    return lambda: RunInfo(values, thread_id, run_id, has_saver)


def unpack_job(
    data: bytes | memoryview,
    node: Node,
    store: Any,
    open_ref: Open | None,
    runs: Mapping[int, NewRun],
) -> Job:
    """Return the job in the message after the digest of its node, of one of *runs* or its own."""
    content = unpack(data, open_ref, serialization.DIGEST_SIZE)
    number = content[0]
    run = runs[number]() if isinstance(number, int) else None
    return messages.job_of(content, node, store, run)


def is_plain_call(job: Job) -> bool:
    """Return whether *job* is a call with numbers and text alone, as most small ones are."""
    given, info = job.input, job.info
    return (
        type(given) is Arguments
        and PLAIN_INPUT.issuperset(map(type, given.args))
        and type(info.name) is str
        and not (given.kwargs or job.channels or job.managed or job.control)
        and not (info.answers or info.error)
    )


def pack_job(job: Job, share: BufferWriter | None, sent: Sent | None) -> Message:
    """Return *job* as a message, after what was *sent* ahead."""
    return messages.pack_job(job, share, None if sent is None else sent.number)
