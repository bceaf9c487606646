"""The status of a run as a sentence, with the command for the next step.

`describe_status` reads nothing: the caller passes all that the store records, and the
present activity if a process has published it. Because no clock is read either, a
sentence stays true until the store changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from flowpregel._inspection.preview import PREVIEW, json_in_one_line
from flowpregel._shell import command_line, command_words
from flowpregel._text import in_one_line
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.work import Status
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL

Situation: TypeAlias = Literal[
    "running",
    "enqueued",
    "queued",
    "sleeping",
    "awaiting signal",
    "asking",
    "paused",
    "failed",
    "partly failed",
    "killed",
    "stopped",
    "done",
    "reading",
]
"""The situation of a run, which is more precise than its status.

* *enqueued*: The run was enqueued, and has not begun.
* *queued*: The run is running, but all calls wait for a worker.
* *sleeping*, *awaiting signal*, *asking*, *paused*: The run waits for a time, a signal,
  an answer, or for a person at a breakpoint or after an edit.
* *partly failed*: The run is done, but it caught the errors of some calls.
* *killed*, *stopped*: Tasks are due. The process of the run died, or it ended the run.
* *reading*: The reader has not read all tasks of the run yet, so the situation is not
  known.
"""
_TAKEN_BY_WORK: Final = frozenset[Situation](
    {
        "running",
        "enqueued",
        "queued",
        "sleeping",
        "awaiting signal",
        "killed",
        "stopped",
    }
)
"""The situations in which `flowpregel work` begins or resumes a run, or is already
running it.
"""
_FLOW_NAME = "MODULE:FLOW"
_LONGEST_DETAIL = 200
"""The greatest length of an error or a question in a sentence."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts about a run from which its status is described."""

    thread_id: str
    status: Status
    names_flow: bool = True
    """True if the run recorded its flow, so that a command can import it."""
    finished: int | None = None
    """The number of stored results, or None if they have not been counted."""
    failed: int = 0
    """The number of calls whose last attempt failed."""
    unfinished: int = 0
    """The number of calls that have records, but did not end."""
    failure: str = ""
    """The call that failed and its error, in one line; empty if there is none."""
    questions: Sequence[Mapping[str, Any]] = ()
    """The open interrupts, each with ``id`` and ``value``, as `question_to_json`
    returns them.
    """
    reached_limit: bool = False
    """True if the run has used up its supersteps."""
    owner: str = ""
    """The process that runs the run now, or that died; empty if there is none."""
    position: QueuePosition | None = None
    """The position of the run in the queue, if it was enqueued and has not begun."""
    paused: str = ""
    """The reason why the run is paused, as `PausedRuns.reason` returns it."""
    flow: str = ""
    """The flow of the run, as ``MODULE:FLOW``."""
    activity: Mapping[str, Any] | None = None
    """The last activity of the run, as `StoreReader.live` returns it, or None."""


@dataclass(frozen=True, kw_only=True)
class StatusText:
    """The status of a run in words, and the next step.

    Example:
        >>> text = StatusText(
        ...     situation="stopped",
        ...     short="stopped",
        ...     sentence="Stopped before its end.",
        ...     next_step="resume it",
        ...     command=("resume", "study"),
        ... )
        >>> text.command_line("runs.lmdb")
        'flowpregel resume study --store runs.lmdb'
        >>> text.to_json()["command"]
        'flowpregel resume study'
    """

    situation: Situation
    """The situation of the run, which is more precise than the status."""
    short: str
    """A few words, for a list of runs."""
    sentence: str
    """The status as a sentence."""
    next_step: str = ""
    """The purpose of *command*, such as ``resume it``; empty if nothing is left to do.
    """
    command: tuple[str, ...] = ()
    """The words of the command for the next step, without the store. Two dashes precede
    arguments of which one begins with a dash.
    """
    signals: tuple[str, ...] = ()
    """The names of the signals for which the run waits."""
    paused: str = ""
    """The reason why the run is paused: ``all``, ``flow`` or ``run``; empty if it is
    not paused.
    """

    def command_line(self, store: str | None = None) -> str:
        """Return the command for the next step, or an empty string if there is none.

        Args:
            store: The value of ``--store``, or None to leave the option out.
        """
        if not self.command:
            return ""
        location = () if store is None else ("--store", store)
        return command_line(self.command, location)

    def to_json(self, store: str | None = None) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``, with *command* as one line.

        Args:
            store: The value of ``--store``, or None to leave the option out.
        """
        return {
            "situation": self.situation,
            "short": self.short,
            "sentence": self.sentence,
            "next_step": self.next_step,
            "command": self.command_line(store),
            "signals": list(self.signals),
            "paused": self.paused,
        }


def describe_status(facts: RunFacts) -> StatusText:
    """Return the status of a run as a sentence, with the command for the next step.

    Example:
        >>> facts = RunFacts(thread_id="study", status="stopped", finished=120)
        >>> text = describe_status(facts)
        >>> text.sentence
        'Stopped before its end; 120 results are stored.'
        >>> text.command_line("runs.lmdb")
        'flowpregel resume study --store runs.lmdb'
    """
    text = _describe(facts)
    is_taken = text.situation in _TAKEN_BY_WORK
    return _describe_paused(facts, text) if facts.paused and is_taken else text


def describe_reading(count: int) -> StatusText:
    """Return the description of a run whose tasks have not all been read.

    Args:
        count: The number of tasks that have been read.

    Example:
        >>> describe_reading(15_000).sentence
        'Reading what is stored of the run: 15,000 calls so far.'
    """
    return StatusText(
        situation="reading",
        short="reading",
        sentence=(
            f"Reading what is stored of the run: {_counted(count, 'call')} so far."
        ),
    )


def _describe(facts: RunFacts) -> StatusText:
    """Return the description of a run without regard to a pause, which
    `_describe_paused` adds.
    """
    match facts.status:
        case "running":
            return _describe_running(facts)
        case "waiting":
            return _describe_waiting(facts)
        case "failed":
            return _describe_failed(facts)
        case "stopped":
            return _describe_stopped(facts)
        case "enqueued":
            return _describe_enqueued(facts)
        case "done":
            return _describe_done(facts)


def _describe_running(facts: RunFacts) -> StatusText:
    """Return the description of a run that a process executes now."""
    command = command_words("watch", facts.thread_id)
    activity = facts.activity
    running, waiting = _activity_counts(activity)
    if activity is not None and waiting and not running:
        return StatusText(
            situation="queued",
            short="waits for a worker",
            sentence=(
                f"Waiting for a worker: {_counted(waiting, 'call')} of {facts.owner} "
                "cannot start yet."
            ),
            next_step="watch it",
            command=command,
        )
    sentence = f"Running in {facts.owner}"
    if activity is not None:
        verb = "runs" if running == 1 else "run"
        sentence += f": {_counted(running, 'call')} {verb} now"
        if waiting:
            sentence += f", {waiting:,} more wait for a worker"
    return StatusText(
        situation="running",
        short="running",
        sentence=f"{sentence}.",
        next_step="watch it",
        command=command,
    )


def _activity_counts(activity: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the numbers of calls that run now, and that wait for a worker."""
    if activity is None:
        return 0, 0
    running = [task for task in activity["running"] if task["role"] == "leaf"]
    return len(running), sum(activity["waiting"].values())


def _describe_waiting(facts: RunFacts) -> StatusText:
    """Return the description of a run that waits for a time, a signal or a person."""
    thread = facts.thread_id
    values = [question["value"] for question in facts.questions]
    asking = [
        question for question in facts.questions if not is_pause(question["value"])
    ]
    if asking:
        return _describe_asking(facts, asking)
    signals = [str(value[AWAITS_SIGNAL]) for value in values if AWAITS_SIGNAL in value]
    if signals:
        name = in_one_line(signals[0])
        return StatusText(
            situation="awaiting signal",
            short=f"signal {name!r}",
            sentence=f"Waits for the signal {name!r}.",
            next_step="send it",
            command=command_words(
                "signal", thread, signals[0], "VALUE", options=("--wake",)
            ),
            signals=tuple(dict.fromkeys(signals)),
        )
    if values:
        wake_time = _wake_time(values[0][SLEEPS_UNTIL])
        return StatusText(
            situation="sleeping",
            short=f"until {wake_time}",
            sentence=f"Sleeps until {wake_time}.",
            next_step="resume it after that",
            command=("wake",),
        )
    return StatusText(
        situation="paused",
        short="at a breakpoint",
        sentence="Waits at a breakpoint, or after an edit, until you let it continue.",
        next_step="let it continue",
        command=command_words("resume", thread, options=_flow_option(facts)),
    )


def _wake_time(value: Any) -> str:
    """Return the time at which a run wakes, without parts of a second.

    A value that is not a time with a time zone is returned as a string.
    """
    text = in_one_line(str(value))
    with suppress(ValueError):
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return text


def is_pause(value: Any) -> bool:
    """Return whether the value of an interrupt describes a wait for a time or a signal,
    and is not a question.
    """
    if not isinstance(value, Mapping):
        return False
    return SLEEPS_UNTIL in value or AWAITS_SIGNAL in value


def _describe_asking(
    facts: RunFacts,
    questions: Sequence[Mapping[str, Any]],
) -> StatusText:
    """Return the description of a run with open questions."""
    first = questions[0]
    text = _cut(json_in_one_line(first["value"], PREVIEW))
    more = len(questions) - 1
    sentence = f"Waits for an answer to {text}"
    options = _flow_option(facts)
    if more:
        sentence += f", and to {_counted(more, 'more question')}"
        options = ("--id", str(first["id"]), *options)
    return StatusText(
        situation="asking",
        short="asks " + (text if not more else f"{len(questions):,} questions"),
        sentence=f"{sentence}.",
        next_step="answer",
        command=command_words("answer", facts.thread_id, "VALUE", options=options),
    )


def _describe_failed(facts: RunFacts) -> StatusText:
    """Return the description of a run that failed."""
    failure = facts.failure
    if facts.reached_limit and not failure:
        failure = "the run has used up its supersteps (recursion_limit)"
    text = _cut(failure)
    sentence = f"Failed: {text}" if text else "Failed"
    return StatusText(
        situation="failed",
        short=f"failed: {text}" if text else "failed",
        sentence=f"{sentence}{_stored_results(facts)}.",
        next_step="try again what failed",
        command=command_words("retry", facts.thread_id, options=_flow_option(facts)),
    )


def _describe_stopped(facts: RunFacts) -> StatusText:
    """Return the description of a run whose tasks are due, and that no process has."""
    command = command_words("resume", facts.thread_id, options=_flow_option(facts))
    if not facts.owner:
        return StatusText(
            situation="stopped",
            short="stopped",
            # The cause is not stored. It is Ctrl-C, `cancel`, a time limit, or an error
            # that could not be stored, for example because the disk was full.
            sentence=f"Stopped before its end{_stored_results(facts)}.",
            next_step="resume it",
            command=command,
        )
    sentence = f"Killed: {facts.owner} ended unexpectedly{_stored_results(facts)}"
    running, waiting = _activity_counts(facts.activity)
    running = running or facts.unfinished
    if running:
        sentence += f", {_counted(running, 'call')} had begun"
    if waiting:
        sentence += f", {waiting:,} had not"
    return StatusText(
        situation="killed",
        short="killed",
        sentence=f"{sentence}.",
        next_step="resume it",
        command=command,
    )


def _describe_enqueued(facts: RunFacts) -> StatusText:
    """Return the description of a run that was enqueued and has not begun."""
    position = facts.position or QueuePosition()
    sentence = "Enqueued"
    if position.priority:
        sentence += f" with priority {position.priority}"
    if position.not_before:
        moment = datetime.fromtimestamp(position.not_before, UTC)
        sentence += f", to begin after {moment.isoformat(timespec='seconds')}"
    return StatusText(
        situation="enqueued",
        short="enqueued",
        sentence=f"{sentence}; `flowpregel work` runs it.",
        next_step="run what is enqueued",
        command=("work", "--until-empty"),
    )


def _describe_paused(facts: RunFacts, text: StatusText) -> StatusText:
    """Return the description of a paused run, given the description without the
    pause.
    """
    reason = {"all": "All runs are", "flow": "Its flow is"}.get(facts.paused, "It is")
    commands = {
        "all": command_words("unpause", options=("--all",)),
        "flow": command_words("unpause", options=("--flow", facts.flow)),
        "run": command_words("unpause", facts.thread_id),
    }
    effect = "does not take it"
    if facts.status == "running":
        effect = "ends it when its running calls have ended"
    return replace(
        text,
        short=f"{text.short}, paused",
        sentence=f"{text.sentence} {reason} paused: `flowpregel work` {effect}.",
        next_step="end the pause",
        command=commands[facts.paused],
        paused=facts.paused,
    )


def _describe_done(facts: RunFacts) -> StatusText:
    """Return the description of a run that is done."""
    failed = facts.failed
    if not failed:
        return StatusText(situation="done", short="done", sentence="Done.")
    return StatusText(
        situation="partly failed",
        short=f"done, {failed:,} failed",
        sentence=f"Done, but {_counted(failed, 'call')} failed.",
        next_step=f"try {'it' if failed == 1 else f'the {failed:,}'} again",
        command=command_words(
            "retry", facts.thread_id, options=("--failed", *_flow_option(facts))
        ),
    )


def _flow_option(facts: RunFacts) -> tuple[str, ...]:
    """Return the option that names the flow, if the run did not record the flow."""
    return () if facts.names_flow else ("--flow", _FLOW_NAME)


def _stored_results(facts: RunFacts) -> str:
    """Return a clause about the stored results of an unfinished run."""
    match facts.finished:
        case None:
            return "; finished work is stored"
        case 0:
            return "; no call had finished"
        case 1:
            return "; 1 result is stored"
        case count:
            return f"; {count:,} results are stored"


def _counted(number: int, noun: str) -> str:
    """Return a number with a noun, such as ``3 calls``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _cut(text: str) -> str:
    """Return the beginning of a string, in one line."""
    line = in_one_line(text)
    if len(line) <= _LONGEST_DETAIL:
        return line
    return line[: _LONGEST_DETAIL - 1] + "…"
