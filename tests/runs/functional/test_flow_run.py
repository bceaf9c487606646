"""`Flow.run`: a workflow by its own signature, run once for each id."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import (
    FlowMismatchError,
    InputMismatchError,
    RunNotice,
    TaskCancelled,
    ThreadBusyError,
    UnansweredError,
)
from flowpregel.func import entrypoint, task
from flowpregel.pregel.naming import RunIdentity
from tests.runs.functional.flows import run
from tests.runs.notes import Notes


class Study:
    """A workflow that doubles numbers, fails at some, and counts its calls."""

    def __init__(self, saver: Any, executor: str = "inline") -> None:
        seen = self.seen = Notes()
        bad = self.bad = Notes()

        @task
        def double(n: int) -> int:
            seen.append(n)
            if n in [*bad]:
                raise OSError(f"bad {n}")
            return 2 * n

        self.saver, self.executor, self.double = saver, executor, double
        self.flow = self.named("study")

    def named(self, name: str, **options: Any) -> Any:
        """Return the workflow under another name."""
        double = self.double

        def study(numbers: list[int]) -> int:
            return sum(double(n).result() for n in numbers)

        study.__name__ = name
        study.__qualname__ = name
        return entrypoint(checkpointer=self.saver, executor=self.executor, **options)(
            study
        )

    def ran(self) -> list[int]:
        """Return what was called since this was asked last."""
        known = getattr(self, "_known", 0)
        self._known = len(self.seen)
        return sorted([*self.seen][known:])


@pytest.fixture(params=["memory", "lmdb"])
def saver(request: pytest.FixtureRequest, store: LMDBSaver) -> Any:
    """Return a saver: each kind in turn."""
    return InMemorySaver() if request.param == "memory" else store


@pytest.fixture
def study(saver: Any, executor: str) -> Study:
    """Return a workflow on each saver, with tasks on each executor."""
    return Study(saver, executor)


def failed(drive: Any, study: Study, numbers: list[int], at: int) -> None:
    """Run the workflow under id ``"1"`` to a failure."""
    study.bad.append(at)
    with pytest.raises(OSError, match=f"bad {at}"):
        run(drive, study.flow, numbers, id="1")
    study.ran()


# ---------------------------------------------------------------- the table


def test_a_run_that_is_done_returns_what_it_returned(drive: Any, study: Study) -> None:
    """Asked for again, nothing runs."""
    assert [6, 6] == [run(drive, study.flow, [1, 2], id="1") for _ in "ab"]
    assert [1, 2] == study.ran()


def test_another_id_is_another_run(drive: Any, study: Study) -> None:
    """So is a run without an id."""
    for options in ({"id": "1"}, {"id": "2"}, {}, {}):
        assert 2 == run(drive, study.flow, [1], **options)
    assert [1, 1, 1, 1] == study.ran()


def test_a_failed_run_goes_on(drive: Any, study: Study) -> None:
    """What failed is tried again, what ended is not."""
    failed(drive, study, [1, 2, 3], at=2)
    with pytest.raises(OSError, match="bad 2"):
        run(drive, study.flow, [1, 2, 3], id="1")
    assert [2] == study.ran()

    assert study.seen


def test_another_input_is_an_error_that_names_adopt(drive: Any, study: Study) -> None:
    """Nothing is dropped in silence, of a finished run or of a failed one."""
    run(drive, study.flow, [1], id="done")
    failed(drive, study, [1, 2], at=2)

    for name in ("done", "1"):
        with pytest.raises(InputMismatchError, match="adopt=True"):
            run(drive, study.flow, [1, 3], id=name)
    assert [] == study.ran()


def test_a_failed_run_adopts_a_corrected_input(drive: Any, study: Study) -> None:
    """What was asked before is not asked again."""
    failed(drive, study, [1, 2, 3], at=3)

    with pytest.warns(RunNotice, match="2 answered from the record, 1 executed"):
        assert 14 == run(drive, study.flow, [1, 2, 4], id="1", adopt=True)
    assert [4] == study.ran()
    assert 14 == run(drive, study.flow, [1, 2, 4], id="1")
    assert [] == study.ran()


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_an_adopted_input_is_the_one_that_counts(drive: Any, study: Study) -> None:
    """The run that fails again goes on with it, and may adopt another one."""
    failed(drive, study, [1, 2], at=2)
    study.bad.append(4)
    with pytest.raises(OSError, match="bad 4"):
        run(drive, study.flow, [1, 3, 4], id="1", adopt=True)
    assert [3, 4] == study.ran()

    with pytest.raises(InputMismatchError):
        run(drive, study.flow, [1, 2], id="1")
    with pytest.raises(OSError, match="bad 4"):
        run(drive, study.flow, [1, 3, 4], id="1")
    assert [4] == study.ran()
    assert 18 == run(drive, study.flow, [1, 3, 5], id="1", adopt=True)
    assert [5] == study.ran()


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_finished_run_adopts_more_items(drive: Any, study: Study) -> None:
    """Five items are six: one call runs."""
    run(drive, study.flow, [1, 2, 3, 4, 5], id="1")
    study.ran()

    assert 42 == run(drive, study.flow, [1, 2, 3, 4, 5, 6], id="1", adopt=True)
    assert [6] == study.ran()
    assert 42 == run(drive, study.flow, [1, 2, 3, 4, 5, 6], id="1", adopt=True)
    assert 56 == run(drive, study.flow, [1, 2, 3, 4, 5, 6, 7], id="1", adopt=True)
    assert [7] == study.ran()
    assert 2 == run(drive, study.flow, [1], id="1", adopt=True)
    assert [] == study.ran()


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_finished_run_that_fails_with_its_new_input_goes_on(
    drive: Any, study: Study
) -> None:
    """Its calls are kept beside those of before."""
    run(drive, study.flow, [1, 2], id="1")
    study.bad.append(4)
    for _ in "ab":
        with pytest.raises(OSError, match="bad 4"):
            run(drive, study.flow, [1, 2, 3, 4], id="1", adopt=True)

    assert [1, 2, 3, 4, 4] == study.ran()
    assert 22 == run(drive, study.flow, [1, 2, 3, 5], id="1", adopt=True)
    assert [5] == study.ran()


def test_what_was_invoked_is_not_run_again(drive: Any, study: Study) -> None:
    """A program that moves from `invoke` to `run` keeps its results."""
    drive.invoke(study.flow, [1, 2], thread_id="1")

    assert 6 == run(drive, study.flow, [1, 2], id="1")
    assert [1, 2] == study.ran()
    with pytest.raises(InputMismatchError, match="adopt=True"):
        run(drive, study.flow, [1, 3], id="1")


def test_what_an_invocation_drops_it_says(drive: Any, study: Study) -> None:
    """As LangGraph's, it drops an unfinished run; the notice counts what was
    finished.
    """
    failed(drive, study, [1, 2, 3, 4], at=4)

    with pytest.warns(RunNotice, match=r"3 finished calls.*thread_id='1'"):
        assert 10 == drive.invoke(study.flow, [5], thread_id="1")
    assert 10 == drive.invoke(study.flow, [5], thread_id="1")


# ---------------------------------------------------------------- other workflows


def test_a_renamed_workflow_is_told_of_both_names(drive: Any, study: Study) -> None:
    """Its runs are not begun again without a word."""
    failed(drive, study, [1, 2], at=2)

    with pytest.raises(
        FlowMismatchError, match=r":study'.*:renamed'.*adopts="
    ) as caught:
        run(drive, study.named("renamed"), [1, 2], id="1")
    assert caught.value.recorded.endswith(":study")
    assert [] == study.ran()


@pytest.mark.parametrize(
    ("recorded", "is_ours"),
    [
        ("study:flow", True),
        ("pkg.study:flow", True),
        ("other:flow", False),
        ("study:other", False),
    ],
)
def test_a_workflow_is_known_however_it_was_started(
    recorded: str, is_ours: bool
) -> None:
    """As a script, or as a module of a package."""
    assert is_ours == RunIdentity(flow="study:flow").owns(recorded)


@pytest.mark.parametrize("adopts", ["study", ["other", "study"]])
@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_renamed_workflow_adopts_its_runs(
    drive: Any, study: Study, adopts: Any
) -> None:
    """Finished and unfinished, as often as it takes."""
    run(drive, study.flow, [1], id="done")
    failed(drive, study, [1, 2, 3], at=2)
    renamed = study.named("renamed", adopts=adopts)

    assert 2 == run(drive, renamed, [1], id="done")
    for _ in "ab":
        with pytest.raises(OSError, match="bad 2"):
            run(drive, renamed, [1, 2, 3], id="1")
    assert [2, 2] == study.ran()
    assert 8 == run(drive, renamed, [1, 3], id="1", adopt=True)
    assert [3] == study.ran()


# ---------------------------------------------------------------- at the same time


def holding(saver: Any) -> tuple[Any, threading.Event, threading.Event, Notes]:
    """Return a workflow that goes on only when it is told to."""
    begun, may_end, seen = threading.Event(), threading.Event(), Notes()

    @entrypoint(checkpointer=saver)
    def flow(n: int) -> int:
        seen.append(n)
        begun.set()
        assert may_end.wait(30)
        return n

    return flow, begun, may_end, seen


def test_a_run_that_another_has_is_waited_for(drive: Any, saver: Any) -> None:
    """Its result is returned, and it was run once."""
    flow, begun, may_end, seen = holding(saver)
    handle = flow.start(7, id="1")
    assert begun.wait(30)
    with pytest.raises(ThreadBusyError):
        run(drive, flow, 7, id="1", on_conflict="raise")
    threading.Timer(0.1, may_end.set).start()

    assert 7 == run(drive, flow, 7, id="1")
    assert 7 == handle.result(30)
    assert [7] == seen


def test_two_async_runs_of_one_loop_wait_for_each_other(saver: Any) -> None:
    """The loop is not blocked by the one that waits."""
    seen = Notes()

    @entrypoint(checkpointer=saver)
    async def flow(n: int) -> int:
        seen.append(n)
        await asyncio.sleep(0.1)
        return n

    async def both() -> list[int]:
        return await asyncio.gather(flow.arun(1, id="1"), flow.arun(1, id="1"))

    assert [1, 1] == asyncio.run(both())
    assert [1] == seen


# ---------------------------------------------------------------- handles


def test_a_started_run_has_a_handle(saver: Any) -> None:
    """It has a result, a status, and events."""
    flow, begun, may_end, _ = holding(saver)
    handle = flow.start(7, id="1")
    assert begun.wait(30)

    assert ("1", "running") == (handle.id, handle.status)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    may_end.set()
    assert 7 == handle.result()
    assert "done" == handle.status
    assert ("updates", {"flow": 7}) in [*handle]
    assert [] == [*handle]


def test_a_started_run_that_fails_raises_where_it_is_asked_for(study: Study) -> None:
    """The status says so before."""
    study.bad.append(1)
    handle = study.flow.start([1])
    with pytest.raises(OSError, match="bad 1"):
        handle.result(60)
    assert "failed" == handle.status


def test_a_started_run_can_be_cancelled_and_goes_on(saver: Any) -> None:
    """What is finished is kept."""
    seen, begun = Notes(), threading.Event()

    @task
    def work(n: int) -> int:
        seen.append(n)
        return n

    @entrypoint(checkpointer=saver, executor="inline")
    async def flow(n: int) -> int:
        done = await work(n)
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return done

    handle = flow.start(1, id="1")
    assert begun.wait(30)
    handle.cancel()
    with pytest.raises(TaskCancelled, match="the run was cancelled"):
        handle.result(30)

    assert "failed" == handle.status
    assert 1 == flow.run(1, id="1")
    assert [1] == seen


# questions, and runs in runs -----------------------------------------------


def test_a_run_that_waits_for_an_answer_says_so(drive: Any, saver: Any) -> None:
    """Answered, it is done."""

    @entrypoint(checkpointer=saver)
    def flow(n: int) -> Any:
        return interrupt("delete it?")

    for _ in "ab":
        with pytest.raises(
            UnansweredError, match=r"'delete it\?'.*flow\.answer\("
        ) as caught:
            run(drive, flow, 1, id="1")
    assert ["delete it?"] == [each.value for each in caught.value.interrupts]

    drive.invoke(flow, Command(resume="yes"), thread_id="1")
    assert "yes" == run(drive, flow, 1, id="1")


def test_a_started_run_that_asks_a_question_waits(saver: Any) -> None:
    """It has not failed."""

    @entrypoint(checkpointer=saver)
    def flow(n: int) -> Any:
        return interrupt("delete it?")

    handle = flow.start(1, id="1")
    with pytest.raises(UnansweredError):
        handle.result(60)

    assert "waiting" == handle.status
    assert "yes" == flow.answer("yes", id="1")


def test_an_unanswered_run_shows_each_way_to_answer(store: LMDBSaver) -> None:
    """The call with the name of the workflow and the ids, and the command."""

    @task(executor="inline")
    def ask(n: int) -> Any:
        return interrupt(f"is {n} good?")

    @entrypoint(checkpointer=store)
    def review(count: int) -> list[Any]:
        return [future.result() for future in ask.map(range(count))]

    with pytest.raises(UnansweredError) as one:
        review.run(1, id="a b")
    with pytest.raises(UnansweredError) as two:
        review.run(2, id="c")

    command = f"flowpregel answer 'a b' ANSWER --store {store.path}"
    assert "review.answer(..., id='a b')" in str(one.value)
    assert f"{command}; the answer resumes the run" in str(one.value)
    first, second = two.value.interrupts
    answers = f"{{{first.id!r}: ..., {second.id!r}: ...}}"
    assert f"review.answer({answers}, id='c')" in str(two.value)
    assert "answer c ANSWER --id ID --store" in str(two.value)


def test_a_workflow_runs_inside_another(drive: Any, saver: Any) -> None:
    """Without an id it is a part of that run; with one, a run of its own."""
    seen = Notes()

    @entrypoint(checkpointer=saver)
    def inner(n: int, factor: int = 2) -> int:
        seen.append(n)
        return factor * n

    @entrypoint(checkpointer=saver)
    def outer(n: int) -> int:
        return inner.run(n, factor=3) + inner.run(n, id="own")

    @entrypoint(checkpointer=saver)
    async def async_outer(n: int) -> int:
        return await inner.arun(n, factor=3) + await inner.arun(n, id="own")

    flow = async_outer if drive.is_async else outer
    assert 5 == run(drive, flow, 1, id="1")
    assert 2 == run(drive, inner, 1, id="own")
    assert [1, 1] == seen


def test_runs_are_labelled_with_their_workflow(drive: Any, saver: Any) -> None:
    """For tools that find it by them."""
    study = Study(saver)
    run(drive, study.flow, [1], id="1")

    metadata = study.flow.get_state(thread_id="1").metadata
    assert metadata is not None
    assert f"{__name__}:study" == metadata["flow"]


def test_a_handle_is_awaited_and_iterated_over_on_an_event_loop() -> None:
    """The loop does other things meanwhile; the events are those that ``for``
    yields.
    """

    @task
    def wait(_: int) -> int:
        assert go_on.wait(60)
        return 1

    @entrypoint(checkpointer=InMemorySaver(), executor="threads")
    def flow(n: int) -> int:
        return wait(n).result()

    async def main() -> tuple[int, list[Any]]:
        handle = flow.start(1, id="1")
        events = []
        async for mode, _ in handle:
            events.append(mode)
            go_on.set()  # the first event is that of the body, which waits for this
        return await handle, events

    go_on = threading.Event()
    result, events = asyncio.run(main())

    assert 1 == result
    assert {"tasks", "updates"} <= {*events}


def test_awaiting_a_handle_raises_what_the_run_raised() -> None:
    """With the user's frames, as `result` does."""

    @entrypoint(executor="inline")
    def flow(n: int) -> int:
        raise LookupError(n)

    async def main() -> None:
        await flow.start(1)

    with pytest.raises(LookupError) as failed:
        asyncio.run(main())
    frames = traceback.extract_tb(failed.value.__traceback__)
    assert not any("flowpregel/" in frame.filename for frame in frames)
