"""The ids of tasks, which are made from the tasks' positions, the records that identify
calls, and the ids of threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from flowpregel._core.files import FileContent
from flowpregel._pickling.copies import immutable
from flowpregel.errors import ConfigurationError

CODE_DIGITS = 16
"""The number of digits, at the start of the digest of a body (the code of a workflow or
task), that depend only on the code. The other digits depend on its input too.
"""
NOWHERE = -1
"""The recorded position of a call whose position in its body may differ from run to
run.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREGORIAN_OFFSET = 0x01B21DD213814000
"""The number of 100-nanosecond intervals between 1582-10-15 and 1970-01-01 (RFC 9562,
section 5.1).
"""

_CALL = "~__pregel_push, "
_INDEX = len(", 0000000000")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION_6 = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-([0-9a-f]{4})-[0-9a-f]{12}"
)


def text_digest(*parts: object) -> str:
    """Return a digest of the text of *parts*: 32 hex digits."""
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def task_id(*parts: object) -> str:
    """Return the id of the task that *parts* describe, in the form of a UUID."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    digits = hashlib.blake2b(text, digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def call_path(caller: str, index: int) -> str:
    """Return the path of the *index*-th call of the task that has the path *caller*."""
    return f"{_CALL}{caller}, {index:010d}"


def caller_of(path: str) -> str:
    """Return the path of the task that made the call at *path*, or an empty string if
    *path* does not belong to a call.

    Example:
        >>> caller_of(call_path("~__pregel_pull, flow", 3))
        '~__pregel_pull, flow'
    """
    return path[len(_CALL) : -_INDEX] if path.startswith(_CALL) else ""


def without_ids(namespace: str) -> str:
    """Return *namespace* without the ids of the tasks in it.

    Example:
        >>> without_ids("outer:83f1|inner:07aa")
        'outer|inner'
    """
    return "|".join(part.split(":", 1)[0] for part in namespace.split("|"))


def interrupt_id(namespace: str, index: int) -> str:
    """Return the id of the *index*-th question of the task whose interrupts have the
    namespace *namespace*: 32 hex digits.
    """
    return text_digest(namespace, index)


def is_interrupt_id(value: object) -> bool:
    """Return whether *value* has the form that `interrupt_id` gives."""
    return (
        isinstance(value, str)
        and len(value) == 32
        and set(value) <= set("0123456789abcdef")
    )


def checkpoint_id(now: int, step: int) -> str:
    """Return an id that sorts by *now* (wall-clock nanoseconds): a version 6 UUID.

    The 100-nanosecond field carries the time. The remainder of *now*, and the step, are
    in the fields that RFC 9562 5.6 uses for the clock sequence and the node.
    """
    intervals, rest = divmod(now, 100)
    digits = f"{intervals + _GREGORIAN_OFFSET:015x}"
    return (
        f"{digits[-15:-7]}-{digits[-7:-3]}-6{digits[-3:]}-"
        f"{0x8000 | (rest << 7):x}-{(step + 2) & 0xFFFFFFFFFFFF:012x}"
    )


def packed_id(identifier: str) -> str | bytes:
    """Return a UUID in the usual form as 16 bytes, and any other id unchanged."""
    if _UUID.fullmatch(identifier) is None:
        return identifier
    digits = identifier.replace("-", "")
    return bytes.fromhex(digits)


def unpacked_id(packed: str | bytes) -> str:
    """Return the id from which `packed_id` made *packed*.

    Example:
        >>> unpacked_id(packed_id("1f1ec907-f829-6699-8400-00000000138a"))
        '1f1ec907-f829-6699-8400-00000000138a'
    """
    if isinstance(packed, str):
        return packed
    digits = packed.hex()
    groups = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(groups)


def time_from_id(checkpoint_id: str) -> int:
    """Return the wall-clock nanoseconds in an id, or 0 if the id is not a version 6
    UUID.

    The time in another library's version 6 UUID is read too, to within 128 nanoseconds.

    Example:
        >>> time_from_id(checkpoint_id(1_800_000_000_123_456_789, 3))
        1800000000123456789
    """
    match = _VERSION_6.fullmatch(checkpoint_id)
    if match is None:
        return 0
    high, middle, low, sequence = (int(digits, 16) for digits in match.groups())
    stamp = (high << 28) | (middle << 12) | low
    return (stamp - _GREGORIAN_OFFSET) * 100 + (sequence >> 7 & 0x7F)


def timestamp(now: int) -> str:
    """Return wall-clock nanoseconds as an ISO 8601 string in UTC."""
    return (_EPOCH + timedelta(microseconds=now // 1000)).isoformat()


# ---------------------------------------------------------------- records of calls


Sources: TypeAlias = tuple[tuple[str, str], ...]
"""The sources of arguments: for each argument that is the result of another call, the
name of the parameter, and the name of the task that was called.
"""


class CallKey(NamedTuple):
    """The key of a call, by which its record is found when the body runs again."""

    name: str
    """The name of the task."""
    arguments: str
    """A digest of the arguments, by content."""
    code: str
    """A digest of the function's code, or the version that the user has set in its
    place.
    """
    text: str
    """The call as text for messages, such as ``parse('c.txt')``."""
    is_placed: bool = True
    """True if the position of the call in its body is deterministic, because the call
    did not wait for other calls.
    """
    files: tuple[FileContent, ...] = ()
    """The files among the arguments, which are compared by content."""
    earlier: tuple[str, ...] = ()
    """Other digests under which the same arguments may be recorded: those from the time
    when the task had an earlier name.
    """
    unseen: str = ""
    """The names of values to which the code refers, but whose content the digest of the
    code does not include. They are sent with the key, because the call may be made in a
    worker, and the run that gives the notice is in another process.
    """
    sources: Sources = ()
    """The tasks from whose results arguments come. They are sent with the key, because
    only the process that makes the call knows them, and this may be a worker.
    """


class CallRecord(NamedTuple):
    """The stored facts about a call, in addition to its outcome: its key, and its
    caller.
    """

    name: str
    arguments: str
    code: str
    text: str
    position: int
    """The position of the call among those in the body, or `NOWHERE`."""
    caller: str
    """A digest of the body that made the call: first of the code, then of the input."""
    files: tuple[FileContent, ...] = ()
    """The files among the arguments, which are compared by content."""


class QuestionRecord(NamedTuple):
    """The stored facts about a question that a task has asked."""

    id: str
    """The id of the interrupt that asked the question."""
    content: str = ""
    """A digest of the question, or an empty string if it is unknown."""
    text: str = ""
    """The question as short text, for messages."""
    code: str = ""
    """A digest of the code that asked the question, or an empty string if it is
    unknown.
    """


class KnownQuestions(NamedTuple):
    """The questions that a task has asked in earlier attempts."""

    records: tuple[QuestionRecord, ...]
    """The records of the questions. Those with answers come first, in the order of the
    answers.
    """
    code: str
    """A digest of the task's present code, which may ask questions again."""


class FailedCall(NamedTuple):
    """A call that failed, with everything that a saver stores so that the call can be
    made again, for example by ``flowpregel debug``.
    """

    home: str
    """The module and the name of the function, with ``.map`` appended for a chunk."""
    arguments: Any
    """The arguments of the call, which a saver stores."""
    redacted: frozenset[int | str]
    """The positions and names of the arguments that are not stored."""


class Preview(NamedTuple):
    """The preview of a call: short values of the arguments, the result and the metrics
    (see `flowpregel._core.previews`).
    """

    fields: bytes = b""
    """The short values of the arguments, the result and the metrics, as JSON."""
    media: bytes = b""
    """The larger parts of the preview, such as an image or the first rows of a table.
    """


class Cost(NamedTuple):
    """The cost of an attempt. A field is 0 if its value is unknown.

    For each field, `AttemptRecord` has a field of the same name.
    """

    cpu: float = 0.0
    """The CPU time of the attempt, in seconds."""
    peak: int = 0
    """The peak memory of the process until the end of the attempt, in bytes."""


class Span(NamedTuple):
    """The time, process and cost of an attempt, and the preview of the call. A field is
    0 or empty if its value is unknown.
    """

    began: int
    """The time at which the attempt began, in wall-clock nanoseconds."""
    seconds: float
    executor: str
    """The kind of executor, such as ``"processes"``."""
    pid: int = 0
    cost: Cost = Cost()
    host: str = ""
    preview: Preview = Preview()


FailedAttempt: TypeAlias = tuple[int, float, int, str, str]
"""The facts about a failed attempt: its start in wall-clock nanoseconds, its duration
in seconds, the pid, the error in one line, and the traceback.

The values have built-in types, so that a reader can load them without importing any
class.
"""


UsedResults: TypeAlias = tuple[str, str, int]
"""A count of results of calls that a task used: the name of the called task, a digest
of the code that made the results, and their number. Or a file that such a call
received: its name (see `USED_FILE`), a digest of the content, and the size.
"""


@immutable
class AttemptRecord(NamedTuple):
    """The record of a task's last attempt, and the number of all attempts."""

    name: str
    """The name of the node."""
    began: int
    """The time at which the last attempt began, in wall-clock nanoseconds."""
    seconds: float
    """The duration of the last attempt, in seconds."""
    attempts: int
    """The number of attempts; 0 if another run shared the result."""
    executor: str
    """The name of the executor of the last attempt."""
    pid: int
    """The pid of the process of the last attempt, or 0 if it is unknown."""
    error: str = ""
    """The error of the last attempt in one line, or an empty string if the attempt did
    not fail.
    """
    call: str = ""
    """The call as readable text, if it failed."""
    planned: int = 0
    """The time at which the first attempt was due, in wall-clock nanoseconds."""
    cpu: float = 0.0
    """The CPU time of the last attempt in seconds."""
    peak: int = 0
    """The peak memory of the last attempt's process in bytes."""
    host: str = ""
    """The name of the machine on which the last attempt ran."""
    failed: tuple[FailedAttempt, ...] = ()
    """The failed attempts of the task, oldest first: only the last ten."""
    code: str = ""
    """A digest of the code that made the task's writes, or an empty string for a call
    or a task without writes.
    """
    used: tuple[UsedResults, ...] = ()
    """The results of calls that the task used, and the files in the arguments of those
    calls.
    """
    preview: bytes = b""
    """The ``fields`` of the call's `Preview`."""


class LazyResults(Protocol):
    """A reader of the finished calls that a `Saved` does not contain, because each is
    read from the store when it is needed.
    """

    def result(self, task_id: str) -> Sequence[tuple[str, Any]]:
        """Return the stored writes of a call, or an empty sequence if there is no such
        call.
        """

    def record_at(self, path: str) -> Sequence[tuple[str, Any]]:
        """Return the record of the call at *path*, or an empty sequence if there is
        none.
        """

    def count(self) -> int:
        """Return the number of the calls that are read from the store."""

    def records(self) -> Iterable[Sequence[tuple[str, Any]]]:
        """Yield the records of the calls that are read from the store, without their
        results.
        """


def next_version(newest: float | str | None, now: int) -> float | str:
    """Return a version that is newer than *newest* and unique among all branches of a
    thread.

    Two branches of a thread may follow the same checkpoint, so a counter would give
    them equal versions. Therefore versions are times of a hybrid logical clock
    (Kulkarni et al., "Logical Physical Clocks", 2014).
    """
    if newest is None:
        return now
    if isinstance(newest, str):
        counter = int(newest.split(".", 1)[0]) + 1
        return f"{counter:032}.{now}"
    return max(now, int(newest) + 1)


def thread_name(thread_id: Any) -> str:
    """Return *thread_id*, which may be a str, an integer or a UUID, as a str.

    Raises:
        ConfigurationError: *thread_id* is of another type.
    """
    if isinstance(thread_id, str):
        return thread_id
    if isinstance(thread_id, int | UUID) and not isinstance(thread_id, bool):
        return str(thread_id)
    raise ConfigurationError(f"thread_id must be text, not {thread_id!r}")


def new_thread_name(thread_id: Any) -> str:
    """Return *thread_id* as `thread_name` does, for a thread that may have to be
    created.

    Raises:
        ConfigurationError: *thread_id* is empty or of another type.
    """
    if thread_id == "":
        raise ConfigurationError(
            "thread_id is empty: name the thread by any other text"
        )
    return thread_name(thread_id)
