"""The answers to the page's queries about a run's errors, and about the time that its
parts took.

A run may have a million calls, so a request reads only a part of the calls that
changed. The answer has ``is_behind`` if more have changed, and the page asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowpregel.plugins.page.call_answers import errors_to_json
from flowpregel.plugins.page.calls import CallPages
from flowpregel.watching import time_use, user_traceback


class DiagnosisPages:
    """The answers to the page's queries about errors and times.

    The page passes the parameters of these methods by name.

    Args:
        calls: The answers about calls, with the indexes of the runs.
    """

    def __init__(self, calls: CallPages) -> None:
        self._calls = calls

    def errors(self, thread: str) -> dict[str, Any]:
        """Return the failed calls of a run by kind of error.

        Args:
            thread: The id of the run.
        """
        screen = self._calls.first_screen(thread)
        if screen is not None:
            return screen.errors
        failed = self._calls.failed(thread)
        if failed is None:
            return {"kinds": [], "is_behind": True}
        return errors_to_json(failed)

    def time(self, thread: str) -> dict[str, Any]:
        """Return how the time of a run was spent.

        Args:
            thread: The id of the run.
        """
        index = self._calls.index(thread)
        if index.is_behind:
            return {"use": None, "is_behind": True}
        use = time_use(index.recorded_rows())
        return {
            "use": None if use is None else use.to_json(),
            "is_behind": False,
        }


def attempt_to_json(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a failed attempt of a call to JSON values, with a traceback of the user's
    code only.

    If the whole traceback differs, it is added as ``full``.

    Args:
        attempt: An attempt, as `StoreReader.call` returns it.
    """
    full: str = attempt["traceback"]
    short = user_traceback(full)
    if short.strip() == full.strip():
        return dict(attempt)
    return {
        **attempt,
        "traceback": short,
        "full": full,
    }


def complete_answers(pages: DiagnosisPages, thread: str) -> dict[str, Any]:
    """Return the errors and the times of a run for a report, by the keys under which
    ``source.js`` finds them.

    Args:
        pages: The object that answers the page's queries.
        thread: The id of the run.
    """
    errors = pages.errors(thread)
    while errors["is_behind"]:
        errors = pages.errors(thread)
    time = pages.time(thread)
    while time["is_behind"]:
        time = pages.time(thread)
    return {
        "errors:": errors,
        "time:": time,
    }
