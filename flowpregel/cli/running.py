"""The commands that run flows, or stop runs.

These are: run, resume, answer, cancel, signal, wake.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from flowpregel import errors
from flowpregel._core.commands import Command
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.preview import one_line
from flowpregel._shell import command_line, command_words
from flowpregel._text import in_one_line
from flowpregel.checkpoint.work import status_of
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, print_note
from flowpregel.cli.options import (
    FLOW_OPTION,
    INPUT_OPTIONS,
    RUN_OPTIONS,
    parse_value,
)
from flowpregel.cli.run_choices import DueRuns, pauses_of
from flowpregel.cli.run_requests import RunRequest, run_flow
from flowpregel.cli.typed_arguments import load_flow_with_input
from flowpregel.errors import ConfigurationError, StoreBusyError
from flowpregel.runtime import SLEEPS_UNTIL, pauses

if TYPE_CHECKING:
    from flowpregel.storage.locks import LockHolder

_PERIOD = 0.05
"""The interval, in seconds, at which `cancel` checks whether a run has ended."""
_LOCK_TIMEOUT = 2.0
"""Seconds for which `cancel` tries to write to the store that the run is paused. If the
store is busy for longer, `cancel` only asks the run to stop.
"""
_TEXT_HELP = "VALUE is text, even where it looks like JSON."


@console.store_command("run", *INPUT_OPTIONS, *RUN_OPTIONS)
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--id",
    "--thread-id",
    "thread_id",
    metavar="ID",
    help="The id of the run, under which it resumes; by default the flow's name.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Resume with another input than the run started with.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Start over; the earlier run stays in the history.",
)
def run_command(
    flow: str,
    thread_id: str | None,
    adopt: bool,
    again: bool,
    **options: Any,
) -> Code:
    """Run a flow, resume its run, or show the run's result.

    MODULE:FLOW is package.module:flow or path/to/file.py:flow. If it is a task, the run
    makes one call of it. If a run was stopped or killed, the same command resumes it:
    what had finished is not done again. A graph that is done begins a new run. With
    --again a new run begins in any case.
    """
    loaded_flow, run_input = load_flow_with_input(flow, options)
    if thread_id is None:
        thread_id = loaded_flow.name
    request = RunRequest(
        flow=loaded_flow,
        name=flow,
        thread_id=thread_id,
        options=options,
    )
    if loaded_flow.once is None:
        if adopt:
            raise ConfigurationError(
                f"--adopt is for a workflow of @entrypoint: {flow} is a graph"
            )
        resume = None if again else "auto"
        return run_flow(request, run_input, resume=resume)
    once = replace(loaded_flow.once, adopt=adopt, again=again)
    return run_flow(request, run_input, resume=once)


@console.thread_command("resume", FLOW_OPTION, *RUN_OPTIONS)
def resume_command(thread: str, flow: str | None, **options: Any) -> Code:
    """Resume a thread's unfinished run."""
    loaded_flow = targets.flow_of_thread(thread, flow, options["store"])
    request = RunRequest(
        flow=loaded_flow,
        name=flow,
        thread_id=thread,
        options=options,
    )
    try:
        return run_flow(request, None, resume=loaded_flow.once)
    except errors.EmptyInputError as error:
        raise ConfigurationError(f"thread {thread!r} has no run to resume") from error


@console.thread_command("answer", FLOW_OPTION, *RUN_OPTIONS)
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.option(
    "--id",
    "interrupt_ids",
    metavar="ID",
    multiple=True,
    help="The id of the question, if there are several; one --id for each VALUE.",
)
@click.option("--text", is_flag=True, help=_TEXT_HELP)
def answer_command(
    thread: str,
    values: tuple[str, ...],
    interrupt_ids: tuple[str, ...],
    text: bool,
    flow: str | None,
    **options: Any,
) -> Code:
    """Answer questions of a thread's run, and resume the run.

    VALUE is JSON; what is not JSON is text. To answer several questions at once, pass a
    VALUE and an --id for each, in the same order.
    """
    loaded_flow = targets.flow_of_thread(thread, flow, options["store"])
    with targets.flow_on(loaded_flow, options["store"]) as app:
        state = app.get_state(thread_id=thread)
        questions = {interrupt.id: interrupt.value for interrupt in state.interrupts}
    if not questions:
        raise ConfigurationError(f"thread {thread!r} has no open question")
    question_ids = _select_questions(questions, interrupt_ids, len(values))
    request = RunRequest(
        flow=loaded_flow,
        name=flow,
        thread_id=thread,
        options=options,
    )
    answers = {
        question_id: parse_value(value, text=text)
        for question_id, value in zip(question_ids, values, strict=True)
    }
    return run_flow(request, Command(resume=answers))


def _select_questions(
    questions: dict[str, Any],
    interrupt_ids: Sequence[str],
    count: int,
) -> Sequence[str]:
    """Return the ids of the questions to answer.

    Args:
        questions: The questions, by id.
        interrupt_ids: The ids on the command line. If there are none, there must be
            only one question.
        count: The number of answers.

    Raises:
        ConfigurationError: There are several questions, or none has one of these ids,
            or there is not one id for each answer.
    """
    lines = [f"  {id}  {one_line(question)}" for id, question in questions.items()]
    listed = "\n".join(lines)
    if not interrupt_ids and len(questions) > 1:
        raise ConfigurationError(
            f"{len(questions)} questions are open; choose one with --id:\n{listed}"
        )
    selected = interrupt_ids or list(questions)
    for id in selected:
        if id not in questions:
            raise ConfigurationError(
                f"no question has the id {id!r}; the open questions are:\n{listed}"
            )
    if len({*selected}) != count or len(selected) != count:
        raise ConfigurationError(
            f"{count} answers for {len({*selected})} questions; pass one --id for each "
            f"VALUE; the open questions are:\n{listed}"
        )
    return selected


@console.thread_command("cancel")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Wait this many seconds for the run to stop; 0 does not wait.",
)
def cancel_command(thread: str, wait: float, store: str | None) -> Code:
    """Stop a thread's run, in whatever process it is.

    What finished is kept. Tasks in worker processes are stopped. A task that runs on an
    OS thread of the program ends first. `work` does not take the run again until
    `unpause` or `resume`.
    """
    owner = _cancel_run(store, thread)
    with targets.open_to_read(store) as saver:
        deadline = time.monotonic() + wait
        is_running = saver.owner(thread) == owner
        while is_running and time.monotonic() < deadline:
            time.sleep(_PERIOD)
            is_running = saver.owner(thread) == owner
    record = {
        "thread_id": thread,
        "status": "asked" if is_running else "stopped",
        "owner": str(owner),
    }
    if not is_running:
        name = in_one_line(thread)
        console.print_result(record, f"stopped: {name}; finished work is kept")
        return Code.OK
    console.print_result(record)
    print_note(f"{owner} was asked to stop {thread!r}, but has not stopped yet")
    return Code.FAILED if wait else Code.OK


def _cancel_run(store: str | None, thread: str) -> LockHolder:
    """Ask the run of a thread to stop, pause it, and return its process.

    Raises:
        ConfigurationError: No run holds the thread.
    """
    pause = command_line(command_words("pause", thread))
    error = ConfigurationError(
        f"nothing runs on thread {thread!r}; `{pause}` keeps `work` from taking it"
    )
    try:
        with targets.open_to_write(
            store, InertCodec(), lock_timeout=_LOCK_TIMEOUT
        ) as saver:
            targets.newest_checkpoint(saver, thread)
            if saver.owner(thread) is None:
                raise error
            # The run is paused before it is asked to stop. Otherwise another process
            # may take the run as soon as it has stopped.
            saver.pause([thread])
            owner = saver.cancel(thread)
            if owner is None:
                saver.unpause([thread])
    except StoreBusyError as busy:
        # The store is busy if a process of the run is suspended (SIGSTOP) during a
        # write. Then the run is not paused, but it is asked to stop, since that request
        # needs no lock of the store.
        with targets.open_to_read(store) as saver:
            owner = saver.cancel(thread)
        print_note(f"the run is not paused, so `work` may resume it: {busy}")
    if owner is None:
        raise error
    return owner


@console.thread_command("signal")
@click.argument("name")
@click.argument("value", default="null")
@click.option("--text", is_flag=True, help=_TEXT_HELP)
@click.option("--wake", is_flag=True, help="Also resume the run if it waits.")
def signal_command(
    thread: str,
    name: str,
    value: str,
    text: bool,
    wake: bool,
    store: str | None,
) -> Code:
    """Send a value to a run that waits, or will wait, for a signal.

    VALUE is JSON; what is not JSON is text. A run that is under way receives it at
    once, any other run when it is resumed, which --wake does at once.
    """
    signal_value = parse_value(value, text=text)
    with targets.open_to_write(store) as saver:
        saver.send_signal(thread, name, signal_value)
        is_held = saver.owner(thread) is not None
        is_known = saver.thread(thread) is not None
    console.print_result(
        {"thread_id": thread, "signal": name},
        f"sent: {in_one_line(name)} to {in_one_line(thread)}",
    )
    if not is_known and not is_held:
        print_note(f"there is no run {thread!r} yet; it gets the value when it begins")
    if not wake or is_held:
        return Code.OK
    words = ["--quiet"]
    if store is not None:
        words += ["--store", store]
    words += ["--", thread]
    context = click.get_current_context()
    wake_context = wake_command.make_context(
        "wake",
        words,
        parent=context,
    )
    with wake_context:
        code: Code = wake_command.invoke(wake_context)
    return code


# ---------------------------------------------------------------- many runs


@console.store_command("wake", *RUN_OPTIONS)
@click.argument("thread", metavar="[ID]", required=False)
def wake_command(thread: str | None, **options: Any) -> Code:
    """Resume the runs that were stopped, or no longer need to wait.

    A run no longer needs to wait when its time or signal has come. For cron: if a run
    waits again, the next call of the command resumes it. Runs that wait for an answer,
    are at a breakpoint, have failed, or are under way are left alone. Exits with 0 if
    all resumed runs are done, or wait again.

    With ID only this run is resumed, and if it sleeps, it wakes before its time.
    """
    if thread is not None:
        return _wake_now(thread, options)
    with targets.open_to_read(options["store"]) as saver:
        # Enqueued runs are left out, because `flowpregel work` begins them.
        due = [run for run in DueRuns(saver).threads() if run.status != "enqueued"]
    code = Code.OK
    for run in due:
        code = max(code, _resume_recorded(run.thread_id, run.metadata, options))
    return code


def _wake_now(thread: str, options: dict[str, Any]) -> Code:
    """Resume a run that sleeps, waits for a signal or was stopped, and return the exit
    code.

    Raises:
        ConfigurationError: The run does none of these.
    """
    with targets.open_to_read(options["store"]) as saver:
        saved = targets.newest_checkpoint(saver, thread)
        is_held = saver.owner(thread) is not None
    waits = list(pauses_of(saved))
    sleeping: list[str] = []
    for _, interrupt in waits:
        if SLEEPS_UNTIL in interrupt.value:
            sleeping.append(interrupt.id)
    status = status_of(saved, running=is_held)
    if status != "stopped" and (is_held or not waits):
        raise ConfigurationError(
            f"thread {thread!r} neither sleeps nor waits for a signal, and was not "
            "stopped"
        )
    return _resume_recorded(thread, saved.checkpoint.metadata, options, sleeping)


def _resume_recorded(
    thread_id: str,
    metadata: Mapping[str, Any],
    options: dict[str, Any],
    sleeping: Sequence[str] = (),
) -> Code:
    """Resume a run with the flow that it recorded, and return the exit code.

    An error of this run is printed, so that other runs can still be resumed.

    Args:
        thread_id: The thread of the run.
        metadata: The metadata of the thread's newest checkpoint.
        options: The options of the command.
        sleeping: The ids of the interrupts of sleeps that end now.
    """
    run_options = dict(options)
    if not run_options["on_conflict"]:
        run_options["on_conflict"] = "raise"
    # While `pauses` is set, the run ends where it must wait for a time or a signal,
    # instead of waiting.
    token = pauses.set(True)
    try:
        flow = targets.flow_in_metadata(thread_id, metadata)
        request = RunRequest(
            flow=flow,
            name=None,
            thread_id=thread_id,
            options=run_options,
        )
        if sleeping:
            code = run_flow(request, Command(resume=dict.fromkeys(sleeping)))
        else:
            code = run_flow(request, None, resume=flow.once)
    except errors.ThreadBusyError:
        # Another process has resumed the run first, so nothing remains to be done.
        return Code.OK
    except errors.FlowPregelError as error:
        print_note(f"error: {in_one_line(thread_id)}: {error}")
        code = console.exit_code_of(error)
    finally:
        pauses.reset(token)
    if code is Code.WAITING:
        return Code.OK
    return code
