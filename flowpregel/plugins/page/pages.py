"""The data of the page, as JSON for the page's server, or inside one HTML file.

No user module is imported, and no user value is unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.plugins.page.calls import CallPages
from flowpregel.plugins.page.diagnosis import (
    DiagnosisPages,
    attempt_to_json,
    complete_answers,
)
from flowpregel.plugins.page.logs import LogPages
from flowpregel.plugins.page.scripts import STATIC, report_script
from flowpregel.plugins.page.sent_lists import SentLists
from flowpregel.plugins.page.sweeps import SweepPages
from flowpregel.plugins.page.values import ValuePages, tagged
from flowpregel.watching import (
    PreviewLimits,
    RunList,
    RunQuery,
    StoreReader,
    to_json,
)

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""

MOST_CALLS = 20_000
"""The maximum number of calls in a report. Calls that have failed or wait take
precedence.
"""
MOST_DETAILS = 1_000
"""The maximum number of calls that a report shows with arguments, results and
output.
"""
MOST_LINES = 5_000
"""The maximum number of lines of output in a report: the last ones."""
MOST_STEPS = 200
"""The maximum number of supersteps that a report shows with the values of channels: the
newest ones.
"""
_MOST_REMEMBERED = 50
"""The maximum number of runs whose last activity is remembered."""
_LIMITS = PreviewLimits(
    depth=8,
    count=200,
    size=20_000,
    total=5_000,
)


def json_text(value: Json) -> str:
    """Return JSON in ASCII that can be put into an HTML element, because it contains no
    tag that would end the element.
    """
    text = json.dumps(
        value,
        ensure_ascii=True,
        separators=(",", ":"),
    )
    for character, escape in (("<", r"\u003c"), (">", r"\u003e"), ("&", r"\u0026")):
        text = text.replace(character, escape)
    return text


class Pages:
    """The answers to the page's queries about a store.

    The page passes the parameters of these methods by name.

    Args:
        saver: The saver of the open store. The page opens a separate view of the store.
        is_report: True for a report, for which each query is made once. For a live
            page, queries are repeated when `mark` changes, and the data that an earlier
            server has stored is used.
    """

    def __init__(self, saver: DurableSaver, *, is_report: bool = False) -> None:
        self.saver: DurableSaver = saver
        self.path: str = saver.path
        # If the store has a URL, `saver.location` may contain a password. So
        # `saver.path` is shown, which contains none.
        is_url = "://" in saver.path
        self._store: str = saver.path if is_url else saver.location
        self.reader: StoreReader = StoreReader(
            saver,
            is_patient=is_report,
            is_cached=not is_report,
        )
        self._list = RunList(self.reader)
        self._sent_lists = SentLists()
        self.call_pages: CallPages = CallPages(self.reader)
        self.sweeps: SweepPages = SweepPages(
            saver,
            self.reader,
            self.call_pages,
        )
        self.values: ValuePages = ValuePages(self.reader)
        self.output: LogPages = LogPages(saver, self.reader)
        self.diagnosis: DiagnosisPages = DiagnosisPages(self.call_pages)
        self._inode = _inode_of(self.path)
        self._activities: dict[str, Mapping[str, Any]] = {}
        """The activity that each run has published last, in the order in which it was
        read.
        """

    def close(self) -> None:
        """Store the data with which the next server can begin, and close the reader's
        view of the store.
        """
        # Errors are ignored, because the page must close even if the store has vanished
        # or cannot be read.
        with suppress(FlowPregelError, OSError):
            self.call_pages.keep()
        self.reader.close()

    def reason_gone(self) -> str | None:
        """Return a sentence that explains why the open store is no longer at its path,
        or None if it is.
        """
        inode = _inode_of(self.path)
        if self._inode is None or inode == self._inode:
            return None
        if inode is None:
            return f"The store {self.path} was deleted or moved."
        return f"Another store has replaced {self.path}."

    def mark(self) -> str:
        """Return a string that changes when a page must ask again: something was
        committed, or an answer was based on some of the tasks only.
        """
        return f"{self.reader.mark()} {self.reader.postponed}"

    def runs(self, **query: str) -> Json:
        """Return a page of the list of runs. By default, the run that changed last
        comes first.

        Args:
            query: The parameters of `RunQuery.parse`, and ``known``, the version of the
                page's rows, which are left out of the answer unless they changed.
        """
        known = query.pop("known", "")
        page = self._list.page(RunQuery.parse(**query), time.time_ns())
        lists = {
            "runs": {row.thread_id: row._asdict() for row in page.runs},
            "flows": {flow.flow: flow._asdict() for flow in page.flows},
        }
        return {
            **page._asdict(),
            "store": self.path,
            **self._sent_lists.answer(lists, known),
        }

    def run(self, thread: str) -> Json:
        """Return the row of a run."""
        row = self.reader.run(thread)
        if row is None:
            raise ConfigurationError(f"the store has no thread {thread!r}")
        activity = self._last_activity(thread, row.status)
        # The page requests the status again soon, so the answer may be based on some of
        # the calls only.
        text = self.reader.status(thread, activity, counting="some")
        answer = {**row._asdict(), "text": text and text.to_json(self._store)}
        if text is not None and text.situation == "killed" and activity is not None:
            answer["lost"] = _lost_calls(activity)
        return answer

    def _last_activity(self, thread: str, status: str) -> Mapping[str, Any] | None:
        """Return the present activity of a run, or the last one of a run that was
        killed, or None if it is unknown.
        """
        activity: Mapping[str, Any] | None = self.reader.live(thread)
        if activity is not None:
            self._activities.pop(thread, None)
            self._activities[thread] = activity
            while len(self._activities) > _MOST_REMEMBERED:
                del self._activities[next(iter(self._activities))]
        elif status == "stopped":
            activity = self._activities.get(thread)
        return activity

    def calls(self, thread: str, **parameters: str) -> Json:
        """Return a part of the table of calls, as `CallPages.calls` does."""
        return self.call_pages.calls(thread, **parameters)

    def timeline(self, thread: str, **parameters: str) -> Json:
        """Return a picture of the calls, as `CallPages.timeline` does."""
        return self.call_pages.timeline(thread, **parameters)

    def graph(self, thread: str) -> Json:
        """Return the tasks of a run, as `CallPages.graph` does."""
        return self.call_pages.graph(thread)

    def call(
        self,
        thread: str,
        call: str,
        at: str | None = None,
    ) -> Json:
        """Return all stored data of a call.

        Args:
            thread: The id of the thread.
            call: The id of the call.
            at: The checkpoint from which the call started, if it is known.
        """
        details = self.reader.call(thread, call, at)
        if details is None:
            raise ConfigurationError(
                f"the last run of thread {thread!r} has no call {call!r}"
            )
        questions = [
            {
                "id": question["id"],
                "value": tagged(question["value"]),
                "schema": question.get("response_schema"),
            }
            for question in details["questions"]
        ]
        return {
            "row": details["row"]._asdict(),
            "preview": {
                name: tagged(part) for name, part in details["preview"].items()
            },
            "media": details["media"],
            "outputs": details["outputs"],
            "attempts": [attempt_to_json(attempt) for attempt in details["attempts"]],
            "arguments": tagged(details["arguments"], rest=True),
            "result": tagged(details["result"], rest=True),
            "error": tagged(details["error"]),
            "questions": questions,
        }

    def logs(
        self,
        thread: str,
        call: str,
        at: str | None = None,
    ) -> str:
        """Return the printed and logged text of a call.

        The parameters are those of `call`.
        """
        return self.reader.output(thread, call, at)

    def steps(self, thread: str, most: int | str = 200) -> Json:
        """Return the newest checkpoints of a thread, the newest first."""
        steps: list[Json] = []
        for row in self.reader.steps(thread, int(most)):
            step = row._asdict()
            steps.append({"id": step.pop("checkpoint_id"), **step})
        return steps

    def step(self, thread: str, checkpoint: str) -> Json:
        """Return the values of the channels at a checkpoint.

        A channel that changed also has its value before the checkpoint.
        """
        values = self.reader.values(thread, checkpoint)
        if values is None:
            raise ConfigurationError(
                f"thread {thread!r} has no checkpoint {checkpoint!r}"
            )
        channels: list[Json] = []
        for name in sorted({*values.before, *values.after}):
            is_new_or_gone = (name in values.before) != (name in values.after)
            is_changed = name in values.changed or is_new_or_gone
            channel = {"name": name, "changed": is_changed}
            if is_changed and name in values.before:
                channel["before"] = tagged(to_json(values.before[name], _LIMITS))
            if name in values.after:
                preview = to_json(values.after[name], _LIMITS)
                channel["value"] = tagged(preview, rest=True)
            channels.append(channel)
        return {"id": checkpoint, "channels": channels}


def _lost_calls(activity: Mapping[str, Any]) -> Json:
    """Return the calls that were running in a process when it was killed, and those
    that waited.
    """
    tasks = [task for task in activity["running"] if task["role"] == "leaf"]
    return {
        "running": [task["text"] or task["name"] for task in tasks],
        "waiting": activity["waiting"],
    }


def _inode_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the folder or file at *path*, or None if there is
    none.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


# ---------------------------------------------------------------- as one file


def run_report(saver: DurableSaver, thread: str) -> str:
    """Return the page of a thread's last run, as one HTML file.

    Args:
        saver: The open store.
        thread: The id of the thread.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    with closing(Pages(saver, is_report=True)) as pages:
        answers = _answers(pages, thread)
    return report_page(answers)


def report_page(answers: Mapping[str, Json]) -> str:
    """Return the page as one HTML file.

    Args:
        answers: The answers to the page's queries, by the keys under which
            ``source.js`` finds them.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    style = "".join(
        (STATIC / name).read_text(encoding="utf-8")
        for name in ("vendor/uplot.css", "style.css")
    )
    script = report_script()
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; "
        f"style-src {_hash_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    answers_text = json_text(answers)
    replacements = {
        '<meta charset="utf-8">': (
            '<meta charset="utf-8">\n'
            f'<meta http-equiv="content-security-policy" content="{policy}">'
        ),
        '<link rel="icon" href="static/icon.svg" type="image/svg+xml">\n': "",
        '<link rel="stylesheet" href="static/style.css">': f"<style>{style}</style>",
        '<script type="module" src="static/page.js"></script>': (
            f'<script type="application/json" id="answers">{answers_text}</script>\n'
            f'<script type="module">{script}</script>'
        ),
    }
    for element, replacement in replacements.items():
        page = page.replace(element, replacement, 1)
    return page


def notebook_report(saver: Any, thread: str | None) -> str | None:
    """Return a run's page in a sandboxed frame, or None if the run is not stored."""
    if thread is None or not isinstance(saver, DurableSaver):
        return None
    # An error means that nothing of the run is stored yet, so there is no page.
    with suppress(ConfigurationError):
        page = html.escape(run_report(saver, thread))
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" title="A run" '
            'style="width: 100%; '
            'height: 640px; border: 1px solid #8885; border-radius: 8px"></iframe>'
        )
    return None


def _hash_source(text: str) -> str:
    """Return the source expression with which a content security policy allows an
    element with this text.
    """
    digest = hashlib.sha256(text.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    return f"'sha256-{encoded}'"


def _answers(pages: Pages, thread: str) -> dict[str, Json]:
    """Return the answers to the page's queries, by the keys under which ``source.js``
    finds them.
    """
    run = pages.run(thread)
    steps = pages.steps(thread, MOST_CALLS)
    calls = pages.call_pages.report(thread, MOST_CALLS)
    # A report may be sent to others, so the commands in it do not name the store.
    text = pages.reader.status(thread)
    run["text"] = text and text.to_json()
    index = pages.call_pages.index(thread)
    answers = {
        "runs:": {
            "store": Path(pages.path).name,
            "runs": [run],
            "actions": False,
            "restart": "",
        },
        "run:": run,
        "calls:": calls,
        "graph:": pages.graph(thread),
        "steps:": steps,
        "output:": pages.output.output(thread, most=MOST_LINES),
    }
    for number in calls["numbers"][:MOST_DETAILS]:
        row = index.table.row(number)
        # Each call is read at the checkpoint from which it started, because a search in
        # all checkpoints of the run would take long.
        location = (thread, row.id, row.checkpoint_id)
        answers[f"call:{row.id}"] = pages.call(*location)
        answers[f"logs:{row.id}"] = pages.logs(*location)
    for step in steps[:MOST_STEPS]:
        checkpoint_id = step["id"]
        answers[f"step:{checkpoint_id}"] = pages.step(thread, checkpoint_id)
    answers |= complete_answers(pages.diagnosis, thread)
    return answers
