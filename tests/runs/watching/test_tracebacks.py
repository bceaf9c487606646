"""The traceback of what a task or a body raises: the user's frames, each once."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

import flowpregel
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from tests.runs.functional.flows import run

_HELPER = ["checked", "refuse"]


def refuse(name: str) -> str:
    """Raise at *c*."""
    if name == "c":
        raise ValueError(f"bad {name}")
    return name


@task
def checked(name: str) -> str:
    """Do what `refuse` does."""
    return refuse(name)


def collect(names: list[str]) -> list[str]:
    """Wait for all of them."""
    futures = checked.map(names)
    return [futures[0].result(), futures[1].result()]


def wait(names: list[str]) -> list[str]:
    """Be the body of a workflow."""
    return collect(names)


async def gather(names: list[str]) -> list[str]:
    """Be the body of an async one."""
    return await asyncio.gather(*checked.map(names))


def functions(error: BaseException) -> list[str]:
    """Return whose frames are in the traceback, after those of this test's own
    machinery.
    """
    frames = traceback.extract_tb(error.__traceback__)
    assert not any("flowpregel/" in frame.filename for frame in frames)
    assert not any("concurrent" in frame.filename for frame in frames)
    names = [frame.name for frame in frames]
    return [name for name in names if name in ("wait", "gather", "collect", *_HELPER)]


def failure(drive: Any, flow: Any, given: Any, way: str = "run") -> BaseException:
    """Return what a run raises."""
    with pytest.raises((ValueError, KeyError), match=r"bad|no such|a") as failed:
        run(drive, flow, given) if way == "run" else getattr(drive, way)(flow, given)
    return failed.value


@pytest.fixture(params=["inline", "threads"])
def place(request: pytest.FixtureRequest) -> str:
    """Return an executor in this process."""
    return str(request.param)


@pytest.mark.parametrize("way", ["run", "invoke", "stream"])
def test_a_traceback_holds_the_users_frames_alone(
    drive: Any, place: str, way: str
) -> None:
    """From the line that ran the workflow to the one that raised."""
    error = failure(drive, entrypoint(executor=place)(wait), ["a", "c"], way)

    assert ["wait", "collect", *_HELPER] == functions(error)


def test_a_traceback_of_coroutines_holds_the_users_frames_alone(
    drive: Any, place: str
) -> None:
    """Those of `asyncio.gather` are left out too."""
    error = failure(drive, entrypoint(executor=place)(gather), ["a", "c"])

    assert ["gather", *_HELPER] == functions(error)


@pytest.mark.slow
def test_a_workers_frames_stand_in_the_cause(drive: Any) -> None:
    """As text, and there they are the user's alone as well."""
    error = failure(drive, entrypoint(executor="processes")(wait), ["a", "c"])
    told = str(error.__cause__)

    assert ["wait", "collect"] == functions(error)
    assert "flowpregel/" not in told
    assert all(1 == told.count(f", in {name}\n") for name in _HELPER)


def test_a_handle_raises_with_the_users_frames_alone() -> None:
    """The OS thread of the run is not the user's."""
    handle = entrypoint(executor="inline")(wait).start(["a", "c"])

    with pytest.raises(ValueError, match="bad c") as failed:
        handle.result()

    assert ["wait", "collect", *_HELPER] == functions(failed.value)


def test_the_frames_of_a_cause_are_the_users_too(drive: Any, place: str) -> None:
    """Whatever led to the error is shown like it."""

    def body(names: list[str]) -> list[str]:
        try:
            return collect(names)
        except ValueError as error:
            raise KeyError("no such name") from error

    error = failure(drive, entrypoint(executor=place)(body), ["a", "c"])

    assert [] == functions(error)
    assert error.__cause__ is not None
    assert ["collect", *_HELPER] == functions(error.__cause__)


def test_all_frames_are_shown_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find an error in the library."""
    monkeypatch.setenv("FLOWPREGEL_TRACEBACK", "1")
    flow = entrypoint(executor="inline")(wait)

    with pytest.raises(ValueError, match="bad c") as failed:
        flow.run(["a", "c"])

    files = [
        frame.filename for frame in traceback.extract_tb(failed.value.__traceback__)
    ]
    assert any("flowpregel/" in file for file in files)


def test_an_error_of_our_own_points_to_the_users_line(drive: Any) -> None:
    """How the library came to raise it is not what the user has to mend."""
    flow = entrypoint(executor="inline")(wait)

    with pytest.raises(ConfigurationError) as refused:
        drive.invoke(flow, "x", stream_mode="vlues")

    assert [] == functions(refused.value)


_OURS = """
def door():
    with UsersFrames():
        return {}["x"]
"""


def test_an_error_in_the_library_itself_keeps_its_frames() -> None:
    """They say where to mend it."""
    space: dict[str, Any] = {
        "__name__": "flowpregel.made_up",
        "UsersFrames": UsersFrames,
    }
    exec(_OURS, space)

    with pytest.raises(KeyError) as failed:
        space["door"]()

    frames = traceback.extract_tb(failed.value.__traceback__)
    assert "door" == frames[-1].name


def test_the_same_exception_reaches_the_user(drive: Any, place: str) -> None:
    """Leaving frames out makes no other of it."""
    made: list[ValueError] = []

    def body(names: list[str]) -> None:
        made.append(ValueError(names))
        raise made[0]

    assert failure(drive, entrypoint(executor=place)(body), ["a"]) is made[0]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_body_of_a_map_is_no_frame_of_the_users(executor: str) -> None:
    """Its only frame is the line that called for it, wherever the function ran."""
    with pytest.raises(ValueError, match="bad c") as failed:
        flowpregel.map(
            refuse,
            ["a", "c"],
            store=InMemorySaver(),
            id="a",
            executor=executor,
            progress=False,
        )

    functions(failed.value)
