"""The sentence about a run's status, decided from facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._inspection.situations import RunFacts, describe_status
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL

HOME = "process 7 on here"


def question(value: Any, id: str | None = "q1") -> dict[str, Any]:
    return {"id": id, "value": value}


def activity(running: int, waiting: int) -> dict[str, Any]:
    """What a process publishes: a body, calls that run, and calls that wait."""
    tasks = [{"role": "body"}, *[{"role": "leaf"}] * running]
    return {"running": tasks, "waiting": {"work": waiting}}


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "running, unknown": (
        {"status": "running", "owner": HOME},
        "running",
        "Running in process 7 on here.",
        "flowpregel watch r",
    ),
    "running": (
        {"status": "running", "owner": HOME, "activity": activity(2, 1_200)},
        "running",
        "Running in process 7 on here: 2 calls run now, 1,200 more wait for a worker.",
        "flowpregel watch r",
    ),
    "queued": (
        {"status": "running", "owner": HOME, "activity": activity(0, 3)},
        "queued",
        "Waiting for a worker: 3 calls of process 7 on here cannot start yet.",
        "flowpregel watch r",
    ),
    "enqueued": (
        {"status": "enqueued"},
        "enqueued",
        "Enqueued; `flowpregel work` runs it.",
        "flowpregel work --until-empty",
    ),
    "enqueued, later": (
        {"status": "enqueued", "position": QueuePosition(5, 60.0)},
        "enqueued",
        "Enqueued with priority 5, to begin after 1970-01-01T00:01:00+00:00; "
        "`flowpregel work` runs it.",
        "flowpregel work --until-empty",
    ),
    "enqueued, paused": (
        {"status": "enqueued", "paused": "flow", "flow": "jobs:study"},
        "enqueued",
        "Enqueued; `flowpregel work` runs it. Its flow is paused: `flowpregel work` "
        "does not take it.",
        "flowpregel unpause --flow jobs:study",
    ),
    "running, paused": (
        {"status": "running", "owner": HOME, "paused": "run"},
        "running",
        "Running in process 7 on here. It is paused: `flowpregel work` ends it when "
        "its running calls have ended.",
        "flowpregel unpause r",
    ),
    "failed, paused": (
        {"status": "failed", "paused": "all"},
        "failed",
        "Failed; finished work is stored.",
        "flowpregel retry r",
    ),
    "sleeping": (
        {"status": "waiting", "questions": [question({SLEEPS_UNTIL: "2026-12-01"})]},
        "sleeping",
        "Sleeps until 2026-12-01.",
        "flowpregel wake",
    ),
    "sleeping until a time": (
        {
            "status": "waiting",
            "questions": [question({SLEEPS_UNTIL: "2026-12-01T09:30:05.25+01:00"})],
        },
        "sleeping",
        "Sleeps until 2026-12-01 08:30:05 UTC.",
        "flowpregel wake",
    ),
    "signal": (
        {
            "status": "waiting",
            "questions": [
                question({SLEEPS_UNTIL: "2026-12-01"}),
                question({AWAITS_SIGNAL: "go on"}),
            ],
        },
        "awaiting signal",
        "Waits for the signal 'go on'.",
        "flowpregel signal r 'go on' VALUE --wake",
    ),
    "asking": (
        {
            "status": "waiting",
            "questions": [
                question({AWAITS_SIGNAL: "go"}),
                question({"allow": "ann\x1b[2J"}),
            ],
        },
        "asking",
        'Waits for an answer to {"allow": "ann\\u001b[2J"}.',
        "flowpregel answer r VALUE",
    ),
    "asking several": (
        {"status": "waiting", "questions": [question("a?"), question("b?", "q2")]},
        "asking",
        'Waits for an answer to "a?", and to 1 more question.',
        "flowpregel answer r VALUE --id q1",
    ),
    "paused": (
        {"status": "waiting"},
        "paused",
        "Waits at a breakpoint, or after an edit, until you let it continue.",
        "flowpregel resume r",
    ),
    "failed": (
        {"status": "failed", "failure": "parse('c'): ValueError: no", "finished": 120},
        "failed",
        "Failed: parse('c'): ValueError: no; 120 results are stored.",
        "flowpregel retry r",
    ),
    "limit": (
        {"status": "failed", "reached_limit": True},
        "failed",
        "Failed: the run has used up its supersteps (recursion_limit); finished work "
        "is stored.",
        "flowpregel retry r",
    ),
    "partly failed": (
        {"status": "done", "failed": 3, "finished": 9},
        "partly failed",
        "Done, but 3 calls failed.",
        "flowpregel retry r --failed",
    ),
    "killed": (
        {
            "status": "stopped",
            "owner": HOME,
            "finished": 120,
            "activity": activity(2, 379),
        },
        "killed",
        "Killed: process 7 on here ended unexpectedly; 120 results are stored, 2 calls "
        "had begun, 379 had not.",
        "flowpregel resume r",
    ),
    "killed, by its records": (
        {"status": "stopped", "owner": HOME, "finished": 1, "unfinished": 1},
        "killed",
        "Killed: process 7 on here ended unexpectedly; 1 result is stored, 1 call had "
        "begun.",
        "flowpregel resume r",
    ),
    "stopped": (
        {"status": "stopped", "finished": 0, "names_flow": False},
        "stopped",
        "Stopped before its end; no call had finished.",
        "flowpregel resume r --flow MODULE:FLOW",
    ),
    "done": ({"status": "done", "finished": 9}, "done", "Done.", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_status_is_a_sentence_with_the_next_step(case: str) -> None:
    facts, situation, sentence, command = CASES[case]

    text = describe_status(RunFacts(thread_id="r", **facts))

    assert (situation, sentence) == (text.situation, text.sentence)
    assert command == text.command_line()
    assert bool(command) == bool(text.next_step)
    assert text.short.isprintable()


def test_a_command_names_the_store_as_a_shell_reads_it() -> None:
    text = describe_status(RunFacts(thread_id="a b", status="stopped"))

    assert "flowpregel resume 'a b' --store 'my runs'" == text.command_line("my runs")
    assert text.command_line("my runs") == text.to_json("my runs")["command"]


def test_a_long_error_is_cut() -> None:
    """A sentence stays one that a person reads."""
    text = describe_status(
        RunFacts(thread_id="r", status="failed", failure=f"E: {'x' * 10_000}\n")
    )

    assert len(text.sentence) < 300
    assert "…" in text.sentence
