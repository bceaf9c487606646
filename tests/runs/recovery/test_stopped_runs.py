"""What a run that is stopped shows: the user's frames, and how to go on."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import traceback
from pathlib import Path
from typing import Any

import pytest

from flowpregel import interrupt
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import RunStopped, UnansweredError
from flowpregel.func import entrypoint, task
from tests.runs.functional.flows import double, run


@task
def press_ctrl_c(_: int) -> None:
    """Send the signal that Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


@task
def fail(_: int) -> None:
    """Raise."""
    raise OSError("no network")


def flow_of(last: Any) -> Any:
    """Return a workflow whose last call is one of *last*, after three others."""

    @entrypoint(checkpointer=InMemorySaver(), executor="threads")
    def flow(n: int) -> None:
        for future in double.map(range(n)):
            future.result()
        last(n).result()
        double(n).result()

    return flow


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Any:
    """Let Ctrl-C raise `KeyboardInterrupt`, whatever the test runner does with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def files(error: BaseException) -> list[str]:
    """Return the names of the files whose frames are in the traceback of *error*."""
    frames = traceback.extract_tb(error.__traceback__)
    return [Path(frame.filename).name for frame in frames]


def test_ctrl_c_shows_the_users_line_and_how_to_go_on() -> None:
    """No frame of the library, and none of Python that it waited in."""
    flow = flow_of(press_ctrl_c)

    with pytest.raises(KeyboardInterrupt) as stopped:
        flow.run(3, id="study-1")

    assert ["test_stopped_runs.py"] == files(stopped.value)
    assert stopped.value.__notes__ == [
        "finished work is kept; to resume, run it again with id='study-1'"
    ]


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_ctrl_c_in_a_run_by_invoke_names_its_thread(way: str) -> None:
    """`invoke` has another way to go on than `run`."""
    flow = flow_of(press_ctrl_c)

    with pytest.raises(KeyboardInterrupt) as stopped:
        list(getattr(flow, way)(3, thread_id="1"))

    assert {"test_stopped_runs.py"} == {*files(stopped.value)}
    assert stopped.value.__notes__ == [
        "finished work is kept; to resume, call invoke(None, thread_id='1')"
    ]


def test_ctrl_c_in_an_async_run_shows_the_users_lines_and_how_to_go_on() -> None:
    """asyncio cancels the run, and raises `KeyboardInterrupt` from that."""
    flow = flow_of(press_ctrl_c)

    async def main() -> None:
        await flow.arun(3, id="study-1")

    with pytest.raises(KeyboardInterrupt) as stopped:
        asyncio.run(main())

    cancelled = stopped.value.__context__
    assert isinstance(cancelled, asyncio.CancelledError)
    assert not any(
        "flowpregel/" in each.filename
        for each in traceback.extract_tb(cancelled.__traceback__)
    )
    assert "to resume, run it again with id='study-1'" in cancelled.__notes__[0]


def test_a_run_that_has_ended_in_time_shows_the_users_line_and_how_to_go_on(
    drive: Any,
) -> None:
    """`RunStopped` is no failure, and its traceback shows nothing of the library."""
    flow = flow_of(double)

    with pytest.raises(RunStopped) as stopped:
        run(drive, flow, 3, id="study-1", stop_after=0)

    shown = traceback.format_exception(stopped.value)
    assert not any("flowpregel/" in line for line in shown)
    assert shown[-1].startswith(
        "finished work is kept; to resume, run it again with id='study-1'"
    )


def left_behind(error: BaseException) -> str:
    """Return the id that the note of *error* names, after a check of its text.

    The call that stops the run may have finished too.
    """
    (note,) = (each for each in error.__notes__ if "left behind" in each)
    text = (
        r"an unfinished run with [34] finished calls is left behind: "
        r".* run\(\.\.\., id='(.+)'\)"
    )
    named = re.fullmatch(text, note)
    assert named is not None, note
    return named[1]


def test_a_failed_run_without_an_id_names_the_one_it_is_kept_under(drive: Any) -> None:
    """With that its finished calls are not made again."""
    flow = flow_of(fail)

    with pytest.raises(OSError, match="no network") as failed:
        run(drive, flow, 3)

    with pytest.raises(OSError, match="no network") as again:
        run(drive, flow, 3, id=(name := left_behind(failed.value)))
    assert not any("left behind" in note for note in again.value.__notes__)
    assert flow.get_state(thread_id=name).next


def test_ctrl_c_in_a_run_without_an_id_names_the_one_it_is_kept_under() -> None:
    """The user knows no other way to it."""
    with pytest.raises(KeyboardInterrupt) as stopped:
        flow_of(press_ctrl_c).run(3)

    assert left_behind(stopped.value)


def test_a_question_in_a_run_without_an_id_names_the_one_it_is_kept_under(
    drive: Any,
) -> None:
    """To run it again without would ask again."""

    @entrypoint(checkpointer=InMemorySaver(), executor="inline")
    def flow(n: int) -> Any:
        for future in double.map(range(n)):
            future.result()
        return interrupt("go on?")

    with pytest.raises(UnansweredError) as unanswered:
        run(drive, flow, 3)

    assert unanswered.value.thread_id == left_behind(unanswered.value)


def test_a_run_that_leaves_nothing_says_nothing(drive: Any) -> None:
    """No call has finished, so a new run costs no more."""

    @entrypoint(checkpointer=InMemorySaver(), executor="inline")
    def flow(n: int) -> None:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network") as failed:
        run(drive, flow, 3)

    assert not any(
        "left behind" in note for note in getattr(failed.value, "__notes__", ())
    )
