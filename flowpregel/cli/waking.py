"""The commands for runs that wait for something outside: signal, wake, recover."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.work import work_of
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, note
from flowpregel.cli.running import RUN_OPTIONS, RunRequest, given_value, perform, waits_outside
from flowpregel.errors import ConfigurationError, FlowPregelError, ThreadBusyError
from flowpregel.runtime import SLEEPS_UNTIL, pauses

_EVERY = "Go on looking for such runs, so often, until it is stopped."


@console.thread_command()
@click.argument("name")
@click.argument("value", default="null")
@click.option("--text", is_flag=True, help="VALUE is text, even where it looks like JSON.")
def signal(thread: str, name: str, value: str, text: bool, store: str | None) -> Code:
    """Send a value to a run that waits, or will wait, for a signal.

    VALUE is JSON; what is not JSON is text. The run receives it at once if it is under way,
    otherwise when it goes on.
    """
    with targets.writing(store) as saver:
        saver.send_signal(thread, name, given_value(value, text=text))
    console.print_result({"thread_id": thread, "signal": name}, f"sent: {name} to {thread}")
    return Code.OK


@console.store_command(*RUN_OPTIONS)
def wake(store: str | None, **options: Any) -> Code:
    """Go on with every run that was stopped, or whose time or signal has come.

    For cron: a run that waits again for a time or a signal is left to the next call.
    Runs that wait for an answer, have failed, or are under way are left alone. Exits
    with 0 if all that it went on with are done, or wait again.
    """
    with targets.reading(store) as saver:
        due = [
            saved
            for each in saver.threads()
            if each.status in ("stopped", "waiting")
            and (saved := saver.load(Address(each.thread_id))) is not None
            and (each.status == "stopped" or _may_go_on(saved))
        ]
    return max((_woken(saved, store, options) for saved in due), default=Code.OK)


@console.store_command(*RUN_OPTIONS)
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help=_EVERY)
def recover(store: str | None, every: float | None, **options: Any) -> Code:
    """Go on with every run whose process has died, on whatever machine that was.

    A run is taken for dead when its lease is out (PostgresSaver(lease_ttl=...)). What it had
    recorded is not done again. Needs the program of the run: its flow is imported here.
    """
    worst = Code.OK
    failed: set[str] = set()  # to be looked at by a person, not tried again and again
    while True:
        for saved in _abandoned(store):
            thread_id = saved.address.thread_id
            code = Code.OK if thread_id in failed else _woken(saved, store, options)
            worst = max(worst, code)
            if code is not Code.OK:
                failed.add(thread_id)
        if every is None:
            return worst
        time.sleep(every)


def _abandoned(store: str | None) -> list[Saved]:
    """Return the newest checkpoints of the threads whose run has died."""
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast

    with targets.reading(store) as saver:
        if isinstance(saver, LMDBSaver):
            raise ConfigurationError(
                "recover is for a store in PostgreSQL; `flowpregel wake` goes on with a folder's"
            )
        found = [saver.load(each) for each in saver.abandoned() if not each.namespace]
        return [saved for saved in found if saved is not None]


def _may_go_on(saved: Saved) -> bool:
    """Return whether a run may wait no longer for a time or a signal."""
    for value in [question.value for work in work_of(saved) for question in work.interrupts]:
        if waits_outside(value):
            due = str(value.get(SLEEPS_UNTIL, ""))
            if not due or datetime.fromisoformat(due).timestamp() <= time.time():
                return True
    return False


def _woken(saved: Saved, store: str | None, options: dict[str, Any]) -> Code:
    """Go on with one run; what is wrong with it does not keep the others waiting."""
    thread_id = saved.address.thread_id
    options = {**options, "on_conflict": options["on_conflict"] or "raise"}
    token = pauses.set(True)  # it stops where it waits for a time or a signal
    try:
        flow = targets.recorded_flow(saved)
        request = RunRequest(flow, None, thread_id, {**options, "store": store})
        code = perform(request, None, resume=flow.once)
    except ThreadBusyError:
        code = Code.OK  # another process was faster
    except FlowPregelError as error:
        note(f"error: {thread_id}: {error}")
        code = console.code_of(error)
    finally:
        pauses.reset(token)
    return Code.OK if code is Code.WAITING else code
