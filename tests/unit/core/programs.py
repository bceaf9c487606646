"""Programs and records for tests that feed the core by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowpregel._core.commands import call_target_of
from flowpregel._core.effects import Call, Submit, Wait, Wakeup
from flowpregel._core.program import Program, compile_program
from flowpregel._core.records import TASKS, Arguments, Node, Outcome, Task
from flowpregel.channels import LastValue, Topic
from tests.crash_driver import CrashDriver


def node(name: str, call: Callable[[Any], Any] = str, **fields: Any) -> Node:
    """Return a node that the input triggers, and that writes what *call* returns to
    ``out``.
    """
    defaults: dict[str, Any] = {
        "steps": (call_target_of(call),),
        "triggers": ("a",),
        "channels": "a",
        "writers": (lambda output, _: [("out", output)],),
    }
    return Node(name=name, **{**defaults, **fields})


def program(*nodes: Node, **channels: Any) -> Program:
    """Return the program of *nodes*, with channels ``a``, ``out`` and *channels*."""
    declared = {
        "a": LastValue(object),
        "out": Topic(object, accumulate=True),
        TASKS: Topic(object),
        **channels,
    }
    return compile_program(
        name="p",
        nodes={each.name: each for each in nodes},
        channels=declared,
        input_channels="a",
        output_channels="out",
        stream_channels=tuple(key for key in declared if key != TASKS),
    )


def ends(**outcomes: Any) -> Callable[[Task], Outcome | None]:
    """Return a script by which the tasks of named nodes end as given, attempt by
    attempt.
    """

    def script(task: Task) -> Outcome | None:
        found = outcomes.get(task.name)
        if isinstance(found, list):
            return found[min(task.attempt.number, len(found)) - 1]
        return found

    return script


def submitted(driver: CrashDriver) -> list[Task]:
    """Return the tasks that the newest run has started, attempt by attempt."""
    return [
        task
        for effect in driver.effects
        if isinstance(effect, Submit)
        for task in effect.tasks
    ]


def called(
    driver: CrashDriver, caller: Task, target: Node, *args: Any, **fields: Any
) -> Call:
    """Let the next wake-up bring a call that *caller* makes, and return the call."""
    made = Call(caller.id, caller.attempt, target, Arguments(args, {}), **fields)
    driver.post(made)
    return made


def call_of(body: Task) -> Call:
    """Return a call that the first attempt of *body* makes."""
    return Call(body.id, 1, node("one"), Arguments((1,), {}))


def fed(driver: CrashDriver, given: Any, *kinds: type) -> tuple[Any, list[Any]]:
    """Start a run, perform it up to its first real `Wait`, and return it with its
    submits.
    """
    steps = driver.start(given)
    effect, started = next(steps), []
    while not isinstance(effect, Wait) or effect.deadline == 0:
        if isinstance(effect, Submit):
            started += effect.tasks
            effect = steps.send(None)
        elif isinstance(effect, Wait):
            effect = steps.send(Wakeup([], 1, 0))
        else:
            effect = steps.send(driver.perform(effect))
    return steps, [effect, *started]
