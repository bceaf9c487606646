"""Where tasks run in this process: limits, nesting, time, cancelling, and what is left
behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from flowpregel._core.effects import Ended, StepContext
from flowpregel._core.records import Kind, Node, Task, Withdrawn
from flowpregel._engine.inbox import LoopInbox, RunInbox
from flowpregel.channels import LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import Job, RunInfo
from flowpregel.executors.local import InlineExecutor
from flowpregel.policies import RetryPolicy
from flowpregel.pregel import NodeBuilder
from tests.graphs import fan_out, graph, on_input
from tests.strategies import call


def fail(_: Any) -> None:
    """Fail at once."""
    raise ValueError("boom")


# -------------------------------------------------------------------- step timeout


@pytest.mark.slow
def test_a_step_timeout_ends_the_run_while_its_only_task_still_runs(drive: Any) -> None:
    """Nobody has to wait for the OS thread that hangs."""
    release = threading.Event()
    app = fan_out(lambda _: release.wait(60), step_timeout=0.05, executor="threads")
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="n0"):
        drive.invoke(app, 1)

    assert time.monotonic() - began < 30
    release.set()


def test_a_step_timeout_cancels_async_tasks_that_still_run() -> None:
    """A coroutine does not go on behind the back of a run that has ended."""

    async def main(step_timeout: float) -> bool:
        """Run a task that hangs; return whether it began before the timeout."""
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(_: Any) -> None:
            began.set()
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with pytest.raises(TimeoutError):
            await fan_out(hang, step_timeout=step_timeout).ainvoke(1)
        if began.is_set():
            await asyncio.wait_for(cancelled.wait(), 30)
        return began.is_set()

    # On a busy machine a short timeout may end the step before its task begins.
    assert any(asyncio.run(main(step_timeout)) for step_timeout in (0.02, 0.2, 2, 20))


def test_a_task_that_ends_after_its_loop_was_closed_disturbs_nobody() -> None:
    """It was left behind by a step timeout, and reports to a mailbox that nobody
    empties.
    """
    loop = asyncio.new_event_loop()
    mailbox = LoopInbox(loop)
    loop.close()
    thread = threading.Thread(target=mailbox.post, args=(Ended("t", 1, Withdrawn()),))

    thread.start()
    thread.join()

    assert [Ended("t", 1, Withdrawn())] == mailbox.take(0)


@pytest.mark.parametrize("has_saver", [False, True])
def test_an_attempt_is_measured_only_if_its_run_is_stored(has_saver: bool) -> None:
    """Otherwise no part of the program reads its span."""
    mailbox, executor = RunInbox(), InlineExecutor(print)
    task = Task("t", Node(name="n"), Kind.PULL, None, "p")
    step = StepContext("", "", step=0, stop=1)
    executor.start([Job(task, step, RunInfo(has_saver=has_saver))], mailbox)

    executor.work()
    (ended,) = mailbox.take(0)

    assert isinstance(ended, Ended)
    assert has_saver == (ended.span is not None)


# -------------------------------------------------------------------- failing siblings


def test_a_coroutine_that_is_cancelled_before_it_began_does_not_hang_the_run() -> None:
    """Its sibling fails on the loop's own OS thread, before the loop had a turn."""

    async def never_begins(_: Any) -> str:
        return "ran"

    app = fan_out(fail, never_begins, executor="inline")

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(asyncio.wait_for(app.ainvoke(1), 5))


# -------------------------------------------------------------------- OS threads


def test_no_more_os_threads_are_made_than_tasks_may_run() -> None:
    """However fast tasks are submitted."""
    names = set()
    lock = threading.Lock()
    before = threading.active_count()
    most = []

    def note(_: Any) -> None:
        with lock:
            names.add(threading.current_thread().name)
            most.append(threading.active_count() - before)

    app = fan_out(*[note] * 50, executor="threads")
    app.invoke(1, max_concurrency=3)

    assert max(most) <= 3
    assert len(names) <= 3


# limits and nesting --------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"config": {"max_concurrency": 1}}, {"max_concurrency": 1}]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_no_more_runs_of_a_batch_run_at_once_than_max_concurrency(
    given: dict[str, Any], is_async: bool
) -> None:
    """In the config, or as a keyword."""
    pair = threading.Barrier(2)

    def meet(_: Any) -> bool:
        try:
            return pair.wait(0.2) < 2
        except threading.BrokenBarrierError:
            return False

    app = graph({"meet": on_input(meet)}, output_channels="out", executor="threads")
    inputs = [1, 2, 3]
    met = (
        asyncio.run(app.abatch(inputs, **given))
        if is_async
        else app.batch(inputs, **given)
    )

    assert [[False]] * 3 == met


def test_no_more_tasks_run_at_once_than_max_concurrency(drive: Any) -> None:
    """However many are due."""
    lock = threading.Lock()
    running = [0]
    most = [0]
    pair = threading.Barrier(2)

    def note(_: Any) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        pair.wait(10)
        with lock:
            running[0] -= 1

    drive.invoke(fan_out(*[note] * 6, executor="threads"), 1, max_concurrency=2)

    assert [2] == most


def test_calls_inside_calls_do_not_wait_for_the_place_their_caller_holds(
    drive: Any, executor: str
) -> None:
    """Twenty deep, where one task may run at once."""

    def dive(depth: int) -> int:
        return 0 if depth == 0 else 1 + int(call(dive, depth - 1).result())

    app = fan_out(dive, executor=executor)

    assert [20] == drive.invoke(app, 20, max_concurrency=1)


# -------------------------------------------------------------------- trying again


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_task_is_tried_again_until_its_attempts_are_spent(
    drive: Any, executor: str, kind: str
) -> None:
    """The attempt is counted for the task to see."""
    attempts: list[int] = []

    def flaky(_: Any, runtime: Any) -> str:
        attempts.append(runtime.execution_info.node_attempt)
        if len(attempts) < 3:
            raise ConnectionError
        return "up"

    async def later(given: Any, runtime: Any) -> str:
        return flaky(given, runtime)

    if kind == "async" and not drive.is_async:
        pytest.skip("a sync run refuses async nodes")
    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    node = on_input(later if kind == "async" else flaky).add_retry_policies(policy)

    assert ["up"] == drive.invoke(graph({"n": node}, executor=executor), 1)
    assert [1, 2, 3] == attempts


# -------------------------------------------------------------------- durability


class Recorder(InMemorySaver):
    """A saver that notes what happens, and fails when it is told to."""

    commits_at_once = False

    def __init__(self, story: list[str], fails_at: int | None = None) -> None:
        super().__init__()
        self.story = story
        self.fails_at = fails_at
        self.commits = 0

    def commit(self, batches: Any) -> None:
        """Note each batch, or fail."""
        for batch in batches:
            self.commits += 1
            if self.commits == self.fails_at:
                raise OSError("disk")
            kept = batch.checkpoint and batch.checkpoint.step
            self.story.append(f"commit {'writes' if kept is None else kept}")
        super().commit(batches)


def chain(story: list[str], saver: Any, executor: str) -> Any:
    """Return a graph of two supersteps that tell what they do."""
    first = on_input(lambda given: story.append("first") or given, "b")
    second = (
        NodeBuilder()
        .subscribe_only("b")
        .do(lambda given: story.append("second") or given)
    )
    nodes = {"first": first, "second": second.write_to("out")}
    return graph(nodes, {"b": LastValue(int)}, checkpointer=saver, executor=executor)


def test_sync_commits_each_superstep_before_the_next(drive: Any, executor: str) -> None:
    """The input before the first task."""
    story: list[str] = []

    drive.invoke(
        chain(story, Recorder(story), executor), 1, thread_id="t", durability="sync"
    )

    assert ["commit -1", "first", "commit 0", "second", "commit 1"] == story


def test_exit_commits_once(drive: Any, executor: str) -> None:
    """When the run is over."""
    story: list[str] = []

    drive.invoke(
        chain(story, Recorder(story), executor), 1, thread_id="t", durability="exit"
    )

    assert ["first", "second", "commit 1"] == story


def test_async_commits_everything_in_order_before_the_run_returns(
    drive: Any, executor: str
) -> None:
    """Whatever it overlaps with."""
    story: list[str] = []

    drive.invoke(
        chain(story, Recorder(story), executor), 1, thread_id="t", durability="async"
    )

    commits = [each for each in story if each.startswith("commit")]
    assert ["commit -1", "commit 0", "commit 1"] == commits
    assert story.index("commit -1") < story.index("first")


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_saver_that_cannot_be_written_is_noticed_before_the_first_task(
    drive: Any, executor: str, durability: str
) -> None:
    """In LangGraph all tasks run before the error shows."""
    story: list[str] = []
    app = chain(story, Recorder(story, fails_at=1), executor)

    with pytest.raises(OSError, match="disk"):
        drive.invoke(app, 1, thread_id="t", durability=durability)

    assert [] == story


def test_nothing_is_shown_of_what_could_not_be_committed(
    drive: Any, executor: str
) -> None:
    """With ``sync``: the error comes in its place."""
    story: list[str] = []
    shown: list[Any] = []
    app = chain(story, Recorder(story, fails_at=3), executor)

    with pytest.raises(OSError, match="disk"):
        drive.stream_until(
            lambda item: shown.append(item) or False,
            app,
            1,
            thread_id="t",
            durability="sync",
            stream_mode="updates",
        )

    assert [{"first": {"b": 1}}] == shown
    assert "second" == story[-1]


def test_a_commit_that_fails_in_the_background_ends_the_run_with_its_error(
    drive: Any, executor: str
) -> None:
    """At the latest when the run is over."""
    story: list[str] = []
    app = chain(story, Recorder(story, fails_at=3), executor)

    with pytest.raises(OSError, match="disk"):
        drive.invoke(app, 1, thread_id="t", durability="async")
