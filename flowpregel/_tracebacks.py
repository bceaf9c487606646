"""Tracebacks of exceptions of the user's code, without the library's frames."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from flowpregel.errors import FlowPregelError, GraphBubbleUp, RunNotice

_OURS: Final = "flowpregel."
_LONGEST: Final = 10_000
"""The greatest length of a traceback as text, in characters."""
_LIBRARY: Final = os.path.dirname(os.__file__)
_BETWEEN: Final = ("concurrent.futures._base", "asyncio.tasks")
"""Modules of the standard library whose stack frames are treated like the library's
own, because the library waits for futures and tasks in them.
"""


class WorkerTraceback(Exception):
    """The traceback that an error had in the worker process, as text. It is set as the
    ``__cause__`` of the error.
    """


class UsersFrames:
    """A context manager that removes the library's frames from the traceback of an
    exception that is raised in the ``with`` block.

    Frames are removed if the user's code is in the traceback, if the exception stops
    the run without being a fault (`is_stop`), or if it is an error of flowpregel, which
    is meant for the caller. Any other exception has its cause in the library, so the
    frames are needed.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        # The error is not raised here: the `with` statement raises it again, without
        # adding the frame of this method.
        if error is not None:
            leave_out_ours(error)


def leave_out_ours(error: BaseException) -> None:
    """Remove the library's frames from *error* and from the exceptions that led to it,
    as `UsersFrames` does.
    """
    # If this environment variable is set, the library's frames stay in the traceback,
    # for developers of the library.
    if os.environ.get("FLOWPREGEL_TRACEBACK"):
        return
    errors = [*linked(error)]
    if is_stop(error):
        for link in errors:
            link.__traceback__ = _without_ours(link.__traceback__)
        return
    is_users = any(isinstance(link, WorkerTraceback) for link in errors)
    is_users |= any(map(_is_users, _links(error.__traceback__)))
    if is_users or isinstance(error, FlowPregelError):
        for link in errors:
            entries = [*_links(link.__traceback__)]
            link.__traceback__ = _traceback_of(
                [entry for entry in entries if not _is_ours(entry)]
            )


def is_stop(error: BaseException) -> bool:
    """Return whether *error* ends a run without being a fault: Ctrl-C, a cancellation,
    or the time limit of the run.
    """
    asyncio = sys.modules.get("asyncio")
    kinds = (KeyboardInterrupt, GraphBubbleUp)
    return isinstance(
        error, kinds if asyncio is None else (*kinds, asyncio.CancelledError)
    )


def _without_ours(first: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the library's frames, and without the frames of
    Python's standard library that the library called.

    Ctrl-C or a cancellation can interrupt any frame, and usually interrupts a wait of
    the library in the standard library.
    """
    entries, below_ours = list[TracebackType](), False
    for entry in _links(first):
        below_ours = _is_ours(entry) or (below_ours and not _is_users(entry))
        if not below_ours:
            entries.append(entry)
    return _traceback_of(entries)


def _traceback_of(entries: Sequence[TracebackType]) -> TracebackType | None:
    """Return one traceback with these *entries* (single frames), or None if there are
    none.
    """
    rest = None
    for entry in reversed(entries):
        entry.tb_next, rest = rest, entry
    return rest


def whole_text(error: BaseException) -> str:
    """Return *error* and its traceback as text, as Python writes them. Of a long text,
    only the end is returned.
    """
    leave_out_ours(error)
    text = "".join(traceback.format_exception(error))
    left_out = len(text) - _LONGEST
    return (
        text if left_out <= 0 else f"... ({left_out:,} characters)\n{text[left_out:]}"
    )


class CodeLine(NamedTuple):
    """A line of the user's code: the file, and the number of the line in it."""

    file: str
    number: int


def users_line() -> CodeLine | None:
    """Return the line of the user's code that called the library, or None if the
    library started this OS thread.
    """
    frame, _ = _calling_frame()
    if frame is None or _is_in_standard_library(frame):
        return None
    return CodeLine(frame.f_code.co_filename, frame.f_lineno)


def give_notice(text: str, started_at: CodeLine | None = None) -> None:
    """Emit a `RunNotice` that refers to the user's line of code.

    Args:
        text: The text of the notice.
        started_at: The line to which the notice refers if the library has started this
            OS thread.
    """
    frame, level = _calling_frame()
    is_users = frame is not None and not _is_in_standard_library(frame)
    if is_users or started_at is None:
        warnings.warn(text, RunNotice, stacklevel=level)
    else:
        warnings.warn_explicit(text, RunNotice, *started_at)


def _calling_frame() -> tuple[FrameType | None, int]:
    """Return the frame that has called the library, and the ``stacklevel`` with which
    the caller of this function must call `warnings.warn` to refer to that frame.
    """
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return frame, level


def _is_in_standard_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_LIBRARY) and "site-packages" not in file


def linked(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, the exceptions that led to it, and the exceptions in exception
    groups, each once.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += (link.__cause__, link.__context__)
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions


def _links(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(link: TracebackType) -> bool:
    name = str(link.tb_frame.f_globals.get("__name__"))
    return name.startswith(_OURS) or name in _BETWEEN


def _is_users(link: TracebackType) -> bool:
    return not _is_ours(link) and not _is_in_standard_library(link.tb_frame)
