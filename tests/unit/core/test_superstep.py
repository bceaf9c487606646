"""One superstep, fed by hand: attempts, handlers, time, and how it is stopped."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from flowpregel._core.commands import Command, Send
from flowpregel._core.effects import (
    BUSY,
    LOOK_AGAIN,
    Call,
    Cancel,
    Commit,
    Emit,
    Ended,
    Resolve,
    Stopped,
    Submit,
    Wait,
    Wakeup,
)
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import (
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    TASKS,
    Address,
    Arguments,
    Escaped,
    Raised,
    Returned,
    Withdrawn,
)
from flowpregel.channels import (
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    UntrackedValue,
)
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import (
    GraphRecursionError,
    NodeCancelledError,
    ParentCommand,
    TaskCancelled,
)
from flowpregel.policies import CachePolicy, RetryPolicy
from tests.crash_driver import CrashDriver, Schedule
from tests.unit.core.programs import call_of, ends, fed, node, program, submitted

SECOND = 1_000_000_000
PATIENT = RetryPolicy(
    retry_on=ValueError, initial_interval=2, backoff_factor=3, jitter=False
)


def waits(driver: CrashDriver) -> list[int]:
    """Return the deadlines that the newest run waited for."""
    return [e.deadline for e in driver.effects if isinstance(e, Wait) and e.deadline]


# -------------------------------------------------------------------- attempts


def test_each_attempt_waits_as_long_as_its_policy_says() -> None:
    """Two seconds, then six; the third failure is the end."""
    always = Raised(ValueError("boom"))
    driver = CrashDriver(
        program(node("n", retry=(PATIENT,))), None, schedule=Schedule(ends(n=always))
    )

    with pytest.raises(ValueError, match="boom"):
        driver.run(1)

    assert [2 * SECOND, 8 * SECOND] == waits(driver)
    assert [3] == [*driver.seen.attempts.values()]


def test_the_first_policy_that_matches_an_error_decides() -> None:
    """Here it is the second one, which does not wait."""
    other = RetryPolicy(retry_on=KeyError, initial_interval=50)
    quick = RetryPolicy(retry_on=ValueError, initial_interval=0, jitter=False)
    driver = CrashDriver(
        program(node("n", retry=(other, quick))),
        None,
        schedule=Schedule(ends(n=[Raised(ValueError()), None])),
    )

    driver.run(1)

    assert 0 == driver.monotonic


def test_a_sibling_that_fails_leaves_a_waiting_attempt_no_other() -> None:
    """What waits to be tried again is given up."""
    driver = CrashDriver(
        program(node("n", retry=(PATIENT,)), node("other")),
        None,
        schedule=Schedule(
            ends(n=Raised(ValueError("first")), other=Raised(KeyError("second")))
        ),
    )

    with pytest.raises(KeyError, match="second"):
        driver.run(1)

    assert 0 == driver.monotonic


# -------------------------------------------------------------------- failures


def test_a_failure_cancels_what_waits_and_keeps_what_ended() -> None:
    """A running task is asked to stop only where no work is lost by it."""
    saver = InMemorySaver()
    driver = CrashDriver(
        program(node("a1"), node("b2"), node("c3")),
        saver,
        schedule=Schedule(ends(b2=Raised(ValueError("boom")))),
    )

    with pytest.raises(ValueError, match="boom"):
        driver.run(1)
    (cancelled,) = [effect for effect in driver.effects if isinstance(effect, Cancel)]
    saved = saver.load(Address("t"))

    assert not cancelled.kill
    assert saved is not None
    assert {"out", ERROR} == {write.channel for write in saved.writes}


def test_a_task_that_cancels_itself_is_a_failure() -> None:
    """Nobody asked for it."""
    driver = CrashDriver(
        program(node("n")), None, schedule=Schedule(ends(n=Withdrawn()))
    )

    with pytest.raises(NodeCancelledError, match="'n'"):
        driver.run(1)


def test_a_command_for_the_graph_around_leaves_the_run_with_it() -> None:
    """Its siblings are not waited for longer than they take to stop."""
    command = Command(graph=Command.PARENT, update={"x": 1})
    options = Options(nested=Nested())
    schedule = Schedule(ends(n=Escaped(command)))
    driver = CrashDriver(program(node("n")), None, options, schedule=schedule)

    with pytest.raises(ParentCommand) as caught:
        driver.run(1)

    assert command == caught.value.command


@pytest.mark.parametrize(
    ("argument", "stored"),
    [
        ({"b": 1, "u": 2}, {"b": 1}),
        ({"u": 2}, {}),
        ({"b": 1}, {"b": 1}),
        (["u"], ["u"]),
        ("u", "u"),
    ],
)
def test_what_is_sent_is_stored_without_the_values_of_untracked_channels(
    argument: Any, stored: Any
) -> None:
    """The node that it is sent to gets all of it."""
    sender = node("n", writers=(lambda _, __: [(TASKS, Send("m", argument))],))
    receiver = node("m", triggers=(), channels=())
    driver = CrashDriver(
        program(sender, receiver, u=UntrackedValue(int)), InMemorySaver()
    )

    driver.run(1)

    assert [1, argument] == [task.input for task in submitted(driver)]
    sends = [
        value.arg
        for effect in driver.effects
        if isinstance(effect, Commit)
        for task in effect.batch.writes
        for name, value in task.writes
        if name == TASKS
    ]
    assert [stored] == sends
    assert driver.saver is not None
    in_checkpoints = [
        send.arg
        for saved in driver.saver.history(Address("t"))
        for send in saved.checkpoint.values.get(TASKS, ())
    ]
    assert [stored] == in_checkpoints


# -------------------------------------------------------------------- calls


def test_the_depth_of_a_call_is_the_number_of_its_callers() -> None:
    """A planned task has none."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    (call,) = steps.send(Wakeup([call_of(body)], 2, 0)).tasks
    assert isinstance(steps.send(None), Wait)
    (inner,) = steps.send(Wakeup([call_of(call)], 2, 0)).tasks

    assert [0, 1, 2] == [task.depth for task in (body, call, inner)]
    steps.close()


def test_the_graphs_that_a_body_calls_have_namespaces_by_their_order() -> None:
    """Their checkpoints are found there again; the first has that of the body."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    graph = node("graph", role="graph")
    made = [
        Call(body.id, 1, target, Arguments((1,), {}))
        for target in (graph, node("leaf"), graph, graph)
    ]

    tasks = steps.send(Wakeup(made, 2, 0)).tasks

    space = body.namespace
    assert [space, f"{space}|1", f"{space}|2"] == [
        task.namespace for task in tasks if task.name == "graph"
    ]
    assert [f"leaf:{tasks[1].id}"] == [
        task.namespace for task in tasks if task.name == "leaf"
    ]
    steps.close()


def test_the_start_of_a_call_is_shown_to_those_who_watch_tasks() -> None:
    """And to no others."""
    for modes in ({"tasks"}, {"values"}):
        driver = CrashDriver(
            program(node("body")), None, Options(modes=frozenset(modes))
        )
        steps, (_, body) = fed(driver, 1)
        effect = steps.send(Wakeup([call_of(body)], 2, 0))
        shown = []
        while not isinstance(effect, Wait):
            if isinstance(effect, Emit):
                shown.append((effect.mode, effect.payload["name"]))
            effect = steps.send(None)

        assert ([("tasks", "one")] if modes == {"tasks"} else []) == shown
        steps.close()


# -------------------------------------------------------------------- commits


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_task_wrote_is_stored_before_anything_of_it_is_shown(
    fails: bool,
) -> None:
    """Nobody sees what a crash would take back."""
    modes = frozenset({"values", "updates", "tasks", "debug"})
    outcome = Raised(ValueError("boom")) if fails else None
    driver = CrashDriver(
        program(node("n")),
        InMemorySaver(),
        Options(modes=modes),
        schedule=Schedule(ends(n=outcome)),
    )
    with suppress(ValueError):
        driver.run(1)

    (ended,) = driver.seen.attempts
    stored = [
        index
        for index, effect in enumerate(driver.effects)
        if isinstance(effect, Commit)
        and any(task.task_id == ended for task in effect.batch.writes)
    ]
    last_wait = max(
        index for index, effect in enumerate(driver.effects) if isinstance(effect, Wait)
    )
    shown = [
        index
        for index, effect in enumerate(driver.effects)
        if isinstance(effect, Emit) and index > last_wait
    ]
    assert len(shown) > 1
    assert stored[0] < shown[0]


# -------------------------------------------------------------------- handlers


def handled(**outcomes: Any) -> CrashDriver:
    """Return a driver of a node ``n`` whose failure node ``h`` handles."""
    nodes = (node("n", handler="h"), node("h", lambda _: "handled", triggers=()))
    return CrashDriver(
        program(*nodes), InMemorySaver(), schedule=Schedule(ends(**outcomes))
    )


def test_a_handler_runs_in_the_superstep_of_what_it_handles() -> None:
    """It is given the same input, and what was raised."""
    driver = handled(n=Raised(ValueError("boom")))

    assert ["handled"] == driver.run(1).values
    failed, handler = submitted(driver)
    assert failed.input == handler.input
    assert handler.error is not None
    assert ("n", "boom") == (handler.error.node, str(handler.error.error))


def test_the_failure_is_kept_before_its_handler_starts() -> None:
    """So that a resume knows what to handle."""
    driver = handled(n=Raised(ValueError("boom")))

    driver.run(1)

    kinds = [type(effect) for effect in driver.effects]
    second = [index for index, kind in enumerate(kinds) if kind is Submit][1]
    assert Commit is kinds[second - 1]
    commit = driver.effects[second - 1]
    assert isinstance(commit, Commit)
    assert [ERROR, ERROR_SOURCE] == [name for name, _ in commit.batch.writes[0].writes]


def test_a_resume_runs_the_handler_alone_and_once() -> None:
    """What failed is not tried again."""
    broken = handled(n=Raised(ValueError("boom")), h=Raised(KeyError("too")))
    with pytest.raises(KeyError):
        broken.run(1)
    repaired = CrashDriver(broken.program, broken.saver)

    assert ["handled"] == repaired.run(None).values
    assert ["h"] == [task.name for task in submitted(repaired)]


def test_a_node_that_failed_before_it_had_a_handler_is_tried_again() -> None:
    """Its failure was never given to one."""
    broken = CrashDriver(
        program(node("n"), node("h", lambda _: "handled", triggers=())),
        InMemorySaver(),
        schedule=Schedule(ends(n=Raised(ValueError("boom")))),
    )
    with pytest.raises(ValueError, match="boom"):
        broken.run(1)
    repaired = CrashDriver(handled().program, broken.saver)

    assert ["1"] == repaired.run(None).values
    assert ["n"] == [task.name for task in submitted(repaired)]


# -------------------------------------------------------------------- time


def test_a_step_timeout_counts_from_the_start_of_its_superstep() -> None:
    """It is waited for although nothing has happened yet."""
    driver = CrashDriver(program(node("n")), None, Options(step_timeout=3))

    steps, (wait, _) = fed(driver, 1)

    assert 3 * SECOND == wait.deadline
    cancel = steps.send(Wakeup([], 2, 3 * SECOND))
    assert isinstance(cancel, Cancel)
    assert cancel.kill
    with pytest.raises(TimeoutError, match=r"step_timeout=3.*n"):
        steps.send(None)


def test_tasks_that_ended_while_the_run_was_paused_do_not_time_out() -> None:
    """A reader of the stream may look at an item until the limit has passed."""
    driver = CrashDriver(program(node("n")), None, Options(step_timeout=3))
    steps, (_, task) = fed(driver, 1)

    end = Wakeup([Ended(task.id, 1, Returned([("out", 2)]))], 2, 4 * SECOND)
    with pytest.raises(StopIteration) as ended:
        steps.send(end)

    assert [2] == ended.value.value.values


def test_a_result_that_comes_with_the_step_timeout_is_stored() -> None:
    """Only the task that still runs is named."""
    program_of_two = program(node("fast"), node("slow"))
    driver = CrashDriver(program_of_two, InMemorySaver(), Options(step_timeout=3))
    steps, (_, fast, slow) = fed(driver, 1)

    cancel = steps.send(
        Wakeup([Ended(fast.id, 1, Returned([("out", 2)]))], 2, 3 * SECOND)
    )
    commit = steps.send(None)

    assert Cancel(slow.id, kill=True, leave=False) == cancel
    assert [fast.id] == [writes.task_id for writes in commit.batch.writes]
    with pytest.raises(TimeoutError, match=r"still running: slow$"):
        steps.send(None)


@pytest.mark.parametrize("has_failed_before", [True, False])
def test_the_error_of_a_task_is_not_hidden_by_the_step_timeout(
    has_failed_before: bool,
) -> None:
    """The other task, which is stopped because of the error, is slow to end."""
    program_of_two = program(node("fast"), node("slow"))
    driver = CrashDriver(program_of_two, InMemorySaver(), Options(step_timeout=3))
    steps, (_, fast, slow) = fed(driver, 1)
    failure = Ended(fast.id, 1, Raised(ValueError("boom")))

    if has_failed_before:
        effect = steps.send(Wakeup([failure], 2, SECOND))
        while not isinstance(effect, Wait):
            effect = steps.send(None)
        effect = steps.send(Wakeup([], 3, 3 * SECOND))
    else:
        effect = steps.send(Wakeup([failure], 2, 3 * SECOND))

    assert Cancel(slow.id, kill=True, leave=False) == effect
    with pytest.raises(ValueError, match="boom"):
        list(steps)


def test_an_attempt_that_is_due_after_the_step_timeout_is_not_waited_for() -> None:
    """The first one, which is due before it, is."""
    always = Raised(ValueError("boom"))
    driver = CrashDriver(
        program(node("n", retry=(PATIENT,))),
        None,
        Options(step_timeout=3),
        schedule=Schedule(ends(n=always)),
    )

    with pytest.raises(TimeoutError, match="step_timeout=3"):
        driver.run(1)

    assert [3 * SECOND, 2 * SECOND, 3 * SECOND, 3 * SECOND] == waits(driver)


def test_a_run_that_is_stopped_before_its_tasks_start_starts_none() -> None:
    """The news comes with the time."""
    steps = CrashDriver(program(node("n")), None, Options(step_timeout=3)).start(1)
    assert Wait(0) == next(steps)

    with pytest.raises(TaskCancelled, match="bye"):
        steps.send(Wakeup([Stopped("bye")], 2, 0))


def test_a_result_that_another_run_computes_is_looked_up_again_after_a_while() -> None:
    """Not at once: the other run may take hours."""
    shared = node("n", cache=CachePolicy())
    steps = CrashDriver(program(shared), None).start(1)
    lookup = next(steps)
    assert isinstance(steps.send(dict.fromkeys(lookup.keys, BUSY)), Wait)

    again = steps.send(Wakeup([], 2, 3 * SECOND))
    wait = steps.send(dict.fromkeys(lookup.keys, BUSY))

    assert lookup == again
    assert 3 * SECOND + LOOK_AGAIN == wait.deadline
    steps.close()


def count_to_three(value: int, _: Any) -> list[tuple[str, int]]:
    """Return the writes of a node that triggers itself twice."""
    return [("a", value)] if value < 3 else [("out", value)]


@pytest.mark.parametrize("make_saver", [lambda: None, InMemorySaver])
def test_a_run_may_use_up_its_supersteps(make_saver: Any) -> None:
    """And not one more."""
    counting = program(node("n", lambda n: n + 1, writers=(count_to_three,)))

    enough = CrashDriver(counting, make_saver(), Options(recursion_limit=3))
    too_few = CrashDriver(counting, make_saver(), Options(recursion_limit=2))

    assert [3] == enough.run(0).values
    with pytest.raises(GraphRecursionError, match="2"):
        too_few.run(0)


# -------------------------------------------------------------------- where it pauses


def test_a_breakpoint_is_told_as_an_update_and_no_value() -> None:
    """No value changed."""
    modes = frozenset({"updates", "values"})
    options = Options(modes=modes, interrupt_before=frozenset({"n"}))
    driver = CrashDriver(program(node("n")), InMemorySaver(), options)

    assert driver.run(1).paused
    assert [("updates", {INTERRUPT: ()})] == driver.emitted


# -------------------------------------------------------------------- what it shows


def test_an_output_that_was_written_and_has_no_value_yet_is_not_shown() -> None:
    """A channel that waits for a second name, for example."""
    made = program(
        node("m", writers=(lambda *_: [("all", "m"), ("b", 1)],)),
        node("n", triggers=("b",), writers=(lambda *_: [("all", "n")],)),
        all=NamedBarrierValue(str, {"m", "n"}),
        b=LastValue(int),
    )
    options = Options(modes=frozenset({"values"}), output_channels=("all",))
    driver = CrashDriver(made, None, options)

    driver.run(1)

    assert [("values", {"all": None})] == driver.emitted


@pytest.mark.parametrize("kind", [LastValue, EphemeralValue])
def test_an_output_stays_that_of_the_last_superstep_that_wrote_it(kind: Any) -> None:
    """Even if a later barrier empties its channel without a write."""
    made = program(
        node("m", writers=(lambda *_: [("shown", "m"), ("b", 1)],)),
        node("n", triggers=("b",), writers=(lambda *_: [],)),
        shown=kind(str),
        b=LastValue(int),
    )
    driver = CrashDriver(made, None, Options(output_channels="shown"))

    assert "m" == driver.run(1).values


def test_an_output_that_no_stream_shows_is_read_once() -> None:
    """An output may have hundreds of channels."""
    reads: list[int] = []

    class ReadValue(LastValue[int]):
        """A value that notes when it is read."""

        def get(self) -> int:
            reads.append(super().get())
            return reads[-1]

    def show(value: int, _: Any) -> list[tuple[str, int]]:
        return [("shown", value), *count_to_three(value, None)]

    made = program(
        node("n", lambda number: number + 1, writers=(show,)), shown=ReadValue(int)
    )
    driver = CrashDriver(made, None, Options(output_channels="shown"))

    assert 3 == driver.run(0).values
    assert [3] == reads


# -------------------------------------------------------------------- stopping


def test_a_run_that_is_stopped_kills_what_runs_and_keeps_what_ended() -> None:
    """And then it raises."""
    saver = InMemorySaver()
    driver = CrashDriver(program(node("m"), node("n")), saver)
    steps, (_, first, second) = fed(driver, 1)

    events = [Ended(first.id, 1, Returned([("out", 1)])), Stopped("bye")]
    cancel = steps.send(Wakeup(events, 2, 0))
    commit = steps.send(None)

    assert Cancel(second.id, True) == cancel
    assert [first.id] == [item.task_id for item in commit.batch.writes]
    assert isinstance(steps.send(driver.perform(commit)), Wait)
    with pytest.raises(TaskCancelled, match="bye"):
        steps.send(Wakeup([Ended(second.id, 1, Withdrawn())], 3, 0))


def test_an_end_that_was_not_waited_for_is_ignored() -> None:
    """Of a task nobody knows, or of an attempt that is over."""
    steps, (_, task) = fed(CrashDriver(program(node("n")), None), 1)
    stale = [Ended("nobody", 1, Withdrawn()), Ended(task.id, 7, Raised(ValueError()))]

    assert isinstance(steps.send(Wakeup(stale, 2, 0)), Wait)


@pytest.mark.parametrize("saw", [False, True], ids=["unseen", "seen"])
def test_a_failure_that_the_body_did_not_live_to_see_fails_it(saw: bool) -> None:
    """It was recorded and on its way when the body returned."""
    steps, (_, body) = fed(CrashDriver(program(node("body")), None), 1)
    made = Call(body.id, 1, node("one"), Arguments((1,), {}))
    submit = steps.send(Wakeup([made], 2, 0))
    assert isinstance(submit, Submit)
    assert isinstance(steps.send(None), Wait)

    failed = Ended(submit.tasks[0].id, 1, Raised(OSError("down")))
    caught = [submit.tasks[0].id] if saw else []
    returned = Ended(body.id, 1, Returned([("out", 1)]), None, caught)
    assert isinstance(steps.send(Wakeup([failed, returned], 3, 0)), Resolve)
    with pytest.raises(StopIteration if saw else OSError):
        steps.send(None)


def test_a_commit_that_fails_stops_what_runs_and_shows_nothing_of_it() -> None:
    """The saver's error ends the run."""
    driver = CrashDriver(
        program(node("m"), node("n")),
        InMemorySaver(),
        Options(modes=frozenset({"updates"})),
    )
    steps, (_, first, second) = fed(driver, 1)
    commit = steps.send(Wakeup([Ended(first.id, 1, Returned([("out", 1)]))], 2, 0))
    assert isinstance(commit, Commit)

    assert Cancel(second.id, True) == steps.throw(OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        steps.send(None)
