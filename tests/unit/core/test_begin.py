"""How a run starts: from input, from where the thread stopped, or from its past."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from flowpregel._core.commands import Command, Send
from flowpregel._core.effects import Commit, Submit
from flowpregel._core.program import Nested, Options, Program
from flowpregel._core.records import (
    LIMIT_REACHED,
    NOTHING_DUE,
    PAUSED,
    TASKS,
    TASKS_DUE,
    Address,
    Durability,
    Raised,
)
from flowpregel.channels import BinaryOperatorAggregate, LastValue, UntrackedValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import (
    EmptyInputError,
    GraphRecursionError,
    UnknownInterruptError,
)
from flowpregel.pregel.edits import StateUpdate, edited
from tests.crash_driver import Crash, CrashDriver, Crashed, Schedule
from tests.unit.core.programs import ends, node, program, submitted


def driver_of(*nodes: Any, saver: Any = None, **channels: Any) -> CrashDriver:
    """Return a driver of *nodes* with a saver."""
    return CrashDriver(program(*nodes, **channels), saver or InMemorySaver())


def again(driver: CrashDriver, **options: Any) -> CrashDriver:
    """Return another driver of the same program and thread."""
    other = CrashDriver(driver.program, driver.saver, Options(**options))
    other.clock = driver.clock
    return other


def history(driver: CrashDriver) -> list[Any]:
    """Return the saved checkpoints, oldest first."""
    assert driver.saver is not None
    return [*driver.saver.history(Address("t"))][::-1]


def started(driver: CrashDriver) -> list[str]:
    """Return the names of the tasks that the newest run started."""
    return [task.name for task in submitted(driver)]


def ask(given: Any) -> Any:
    """Ask two questions about what was given."""
    return interrupt(f"first {given}"), interrupt(f"second {given}")


def asking(text: str, _: Any) -> Any:
    """Ask *text*."""
    return interrupt(text)


# -------------------------------------------------------------------- input


def test_new_input_drops_what_an_earlier_run_left_unfinished() -> None:
    """What was to run is counted as having seen its triggers."""
    second = node("second", triggers=("b",), channels="b")
    first = node("first", writers=(lambda out, _: [("b", out)],))
    driver = driver_of(first, second, b=LastValue(str))
    broken = CrashDriver(
        driver.program,
        driver.saver,
        schedule=Schedule(ends(second=Raised(KeyError("down")))),
    )
    with pytest.raises(KeyError, match="down"):
        broken.run(1)

    driver.run(2)

    assert ["first", "second"] == started(driver)
    assert ["2"] == history(driver)[-1].checkpoint.values["out"]


def test_none_goes_on_where_the_thread_stopped() -> None:
    """With what had not finished, and only that."""
    driver = CrashDriver(
        program(node("m"), node("n")),
        InMemorySaver(),
        schedule=Schedule(ends(n=Raised(ValueError("boom")))),
    )
    with pytest.raises(ValueError, match="boom"):
        driver.run(1)
    repaired = again(driver)

    repaired.run(None)

    assert ["n"] == started(repaired)


def test_a_resumed_run_has_the_tasks_that_the_stopped_one_had() -> None:
    """Not those of nodes that the first value of a channel triggers as well."""
    first_value = BinaryOperatorAggregate(int, operator.add)
    down = ends(m=Raised(OSError("down")))
    broken = CrashDriver(
        program(node("m"), node("n", triggers=("sum",)), sum=first_value),
        InMemorySaver(),
        schedule=Schedule(down),
    )
    with pytest.raises(OSError, match="down"):
        broken.run(1)
    assert ["m"] == started(broken)
    repaired = again(broken)

    repaired.run(None)

    assert ["m"] == started(repaired)


def test_a_clock_that_was_set_back_makes_no_older_checkpoint() -> None:
    """The newest checkpoint is the newest by its id as well."""
    driver = driver_of(node("n"))
    driver.run(1)
    early = again(driver)
    early.clock = 1_000

    early.run(2)

    kept = [saved.checkpoint for saved in history(driver)]
    assert [-1, 0, 1, 2] == [each.step for each in kept]
    assert ["1", "2"] == kept[-1].values["out"]


# -------------------------------------------------------------------- answers


def test_questions_are_answered_in_the_order_in_which_they_are_asked() -> None:
    """Each resume runs the node from its beginning."""
    driver = driver_of(node("n", ask))
    (first,) = driver.run("x").interrupts

    (second,) = driver.run(Command(resume=1)).interrupts
    done = driver.run(Command(resume=2))

    assert ["first x", "second x"] == [first.value, second.value]
    assert first.id != second.id
    assert [(1, 2)] == done.values
    assert [3] == [*driver.seen.attempts.values()]


def test_several_questions_are_answered_by_their_ids() -> None:
    """All at once, or one after the other; what is not answered asks again."""
    driver = driver_of(node("m", interrupt), node("n", interrupt))
    first, second = driver.run("x").interrupts

    (left,) = driver.run(Command(resume={first.id: "one"})).interrupts
    done = driver.run(Command(resume={second.id: "two"}))

    assert second == left
    assert ["one", "two"] == done.values


def test_an_answer_that_comes_twice_is_refused_the_second_time() -> None:
    """It was used; the other question still waits."""
    driver = driver_of(node("m", interrupt), node("n", interrupt))
    first, second = driver.run("x").interrupts
    driver.run(Command(resume={first.id: "one"}))

    with pytest.raises(UnknownInterruptError) as caught:
        driver.run(Command(resume={first.id: "again"}))

    assert (first.id,) == caught.value.interrupt_ids
    assert (second.id,) == caught.value.pending_ids


def test_an_answer_is_kept_before_the_task_that_waits_for_it_starts() -> None:
    """A resume after a crash has it."""
    driver = driver_of(node("n", interrupt))
    driver.run("x")
    steps = driver.start(Command(resume=5))
    effect = next(steps)
    while not isinstance(effect, Submit):
        effect = steps.send(driver.perform(effect))
    steps.close()

    assert [5] == again(driver).run(None).values


def test_an_answer_is_not_lost_by_a_crash_before_its_task_has_it() -> None:
    """It is stored as the command gave it, and the next run finds it there."""
    driver = driver_of(node("n", interrupt))
    driver.run("x")

    with pytest.raises(Crashed):
        driver.run(Command(resume=5), crash=Crash(after=1))

    assert isinstance(driver.effects[-1], Commit)
    assert [5] == again(driver).run(None).values


def test_an_answer_goes_to_no_other_question_after_a_crash() -> None:
    """Not to the one that other code asked before, and that is open still."""
    saver = InMemorySaver()
    before, edited = (
        CrashDriver(program(node("n", partial(asking, text))), saver)
        for text in ("old", "new")
    )
    before.run("x")
    (question,) = edited.run(None).interrupts
    assert "new" == question.value
    steps = edited.start(Command(resume={question.id: "yes"}))
    effect = next(steps)
    while not isinstance(effect, Submit):
        effect = steps.send(edited.perform(effect))
    steps.close()

    (question,) = again(before).run(None).interrupts

    assert "old" == question.value


def test_an_open_question_may_be_answered_while_other_code_asks_another() -> None:
    """Its answer is kept, also beside tasks that ask nothing."""
    saver = InMemorySaver()
    before, edited = (
        CrashDriver(program(node("m"), node("n", partial(asking, text))), saver)
        for text in ("old", "new")
    )
    (old,) = before.run("x").interrupts
    (new,) = edited.run(None).interrupts

    assert (new,) == edited.run(Command(resume={old.id: "yes"})).interrupts

    assert ["x", "yes"] == again(before).run(None).values


# -------------------------------------------------------------------- update and goto


def test_an_update_is_written_before_the_run_goes_on() -> None:
    """On a thread that has nothing it starts one."""
    driver = driver_of(node("n"))

    assert ["1"] == driver.run(Command(update={"a": 1})).values
    assert ["1", "2"] == driver.run(Command(update={"a": 2})).values


def test_goto_sends_beside_what_is_due() -> None:
    """The target is given what was sent."""
    driver = driver_of(node("n"), node("m", triggers=()))
    driver.run(1)

    assert ["1", "x"] == driver.run(Command(goto=Send("m", "x"))).values


def sent_question() -> CrashDriver:
    """Return a driver of two tasks that were sent, of which the second asks."""
    sends = [Send("m", 1), Send("ask", "a")]
    sender = node("n", writers=(lambda _, __: [(TASKS, send) for send in sends],))
    driver = driver_of(
        sender,
        node("m", triggers=(), channels=()),
        node("ask", interrupt, triggers=(), channels=()),
    )
    driver.run("x")
    return driver


def test_an_answer_goes_to_what_its_command_sends_in_place_of_the_task_that_asked() -> (
    None
):
    """As LangGraph has it."""
    driver = sent_question()

    assert ["yes"] == driver.run(Command(resume="yes", goto=Send("ask", "b"))).values


def test_an_answer_by_id_does_not_go_to_what_its_command_sends() -> None:
    """A notice says so."""
    driver = sent_question()
    (question,) = again(driver).run(None).interrupts

    result = driver.run(Command(resume={question.id: "yes"}, goto=Send("ask", "b")))

    assert ["b"] == [item.value for item in result.interrupts]
    (text,) = [payload for mode, payload in driver.emitted if mode == "notices"]
    assert question.id in text


def test_an_answer_to_a_task_whose_place_was_taken_is_refused() -> None:
    """A command has sent another task, which asks something else."""
    driver = sent_question()
    (old,) = again(driver).run(None).interrupts
    (new,) = driver.run(Command(goto=Send("ask", "b"))).interrupts

    with pytest.raises(UnknownInterruptError) as caught:
        driver.run(Command(resume={old.id: "late"}))

    assert ((old.id,), (new.id,)) == (
        caught.value.interrupt_ids,
        caught.value.pending_ids,
    )


def test_updates_of_two_commands_on_one_checkpoint_are_both_kept() -> None:
    """The second takes no place of the first."""
    driver = driver_of(
        node("n"), node("q", interrupt), b=LastValue(int), c=LastValue(int)
    )
    driver.run("x")
    driver.run(Command(update={"b": 1}))
    driver.run(Command(update={"c": 2}))
    (question,) = again(driver).run(None).interrupts
    driver.run(Command(resume={question.id: "yes"}))

    values = history(driver)[-1].checkpoint.values

    assert (1, 2) == (values["b"], values["c"])


def test_an_update_of_an_untracked_channel_is_obeyed_and_not_kept() -> None:
    """Neither before the run goes on nor with a checkpoint."""
    follows = node("m", triggers=("u",), channels="u")
    driver = driver_of(node("n"), follows, u=UntrackedValue(int))
    driver.run(1)

    assert ["1", "5"] == driver.run(Command(update={"u": 5})).values

    batches = [effect.batch for effect in driver.effects if isinstance(effect, Commit)]
    assert [] == [
        w
        for batch in batches
        for item in batch.writes
        for w in item.writes
        if w[0] == "u"
    ]
    assert "u" not in history(driver)[-1].checkpoint.values


@pytest.mark.parametrize("resuming", [False, True], ids=["first", "again"])
def test_a_nested_run_that_is_given_nothing_is_refused_each_time(
    resuming: bool,
) -> None:
    """Another attempt of the task that calls it finds no state either."""
    driver = driver_of(node("n"))
    driver.options = replace(driver.options, nested=Nested(resuming=resuming))

    with pytest.raises(EmptyInputError, match="no input for a"):
        driver.run(None)


@pytest.mark.parametrize(
    ("is_addressed", "shown"),
    [(False, ["first x"]), (True, ["second x"])],
    ids=["where it stopped", "addressed"],
)
def test_the_answers_of_the_node_around_answer_only_a_graph_that_was_addressed(
    is_addressed: bool, shown: list[str]
) -> None:
    """Elsewhere they belong to questions that the node itself has asked."""
    driver = driver_of(node("n", ask))
    nested = Nested(
        answers={"0" * 32: "other"}, own_answers=("mine",), addressed=is_addressed
    )
    driver.options = replace(driver.options, nested=nested)

    assert shown == [item.value for item in driver.run("x").interrupts]


def test_a_run_that_is_stored_at_its_exit_has_the_last_checkpoint_alone() -> None:
    """It is that of a run which stores each superstep."""
    first = node("first", writers=(lambda out, _: [("b", out)],))
    second = node("second", triggers=("b",), channels="b")
    sync, at_exit = (driver_of(first, second, b=LastValue(str)) for _ in range(2))
    at_exit.options = replace(at_exit.options, durability=Durability.EXIT)

    for driver in (sync, at_exit):
        driver.run(1)

    (stored,) = history(at_exit)
    last = history(sync)[-1]
    assert stored.checkpoint.parent_id is None
    for name in ("step", "source", "values", "updated_channels", "follows"):
        assert getattr(last.checkpoint, name) == getattr(stored.checkpoint, name)


@pytest.mark.parametrize(
    ("options", "follows"),
    [
        ({}, [TASKS_DUE, TASKS_DUE, NOTHING_DUE]),
        ({"interrupt_before": frozenset({"second"})}, [TASKS_DUE, PAUSED]),
        ({"interrupt_after": frozenset({"first"})}, [TASKS_DUE, PAUSED]),
        ({"recursion_limit": 0}, [TASKS_DUE, LIMIT_REACHED]),
    ],
    ids=["to the end", "before a node", "after a node", "limit"],
)
def test_a_checkpoint_has_what_follows_it(
    options: dict[str, Any], follows: list[int]
) -> None:
    """A list of threads shows it without their programs."""
    first = node("first", writers=(lambda out, _: [("b", out)],))
    second = node("second", triggers=("b",), channels="b")
    driver = driver_of(first, second, b=LastValue(str))
    driver.options = replace(driver.options, **options)

    with suppress(GraphRecursionError):
        driver.run(1)

    assert follows == [saved.checkpoint.follows for saved in history(driver)]


def test_a_run_with_nothing_to_do_is_not_stored_at_its_exit() -> None:
    """The checkpoint that it started from is still the last."""
    driver = driver_of(node("n"))
    driver.run(1)
    kept = history(driver)
    at_exit = again(driver, durability=Durability.EXIT)

    assert ["1"] == at_exit.run(None).values

    assert kept == history(driver)
    commits = [effect for effect in at_exit.effects if isinstance(effect, Commit)]
    assert [] == commits


# -------------------------------------------------------------------- the past


def past(driver: CrashDriver, saved: Any) -> CrashDriver:
    """Return a driver that starts from an earlier checkpoint."""
    other = again(driver)
    other.options = replace(other.options, address=saved.address)
    return other


def test_a_replay_runs_the_tasks_of_a_checkpoint_again_on_a_branch() -> None:
    """A fork of that checkpoint is kept first, and the original stays."""
    driver = driver_of(node("n"))
    driver.run(1)
    first = history(driver)[0]

    replayed = past(driver, first)
    replayed.run(None)

    assert ["n"] == started(replayed)
    kept = [saved.checkpoint for saved in history(driver)]
    assert ["input", "loop", "fork", "loop"] == [each.source for each in kept]
    assert first.checkpoint.id == kept[2].parent_id
    assert kept[2].id == kept[3].parent_id


def test_a_replay_asks_its_questions_again() -> None:
    """Answers belong to the branch they were given on."""
    driver = driver_of(node("n", interrupt))
    driver.run("x")
    driver.run(Command(resume="yes"))

    result = past(driver, history(driver)[0]).run(None)

    assert ["x"] == [item.value for item in result.interrupts]


def test_new_input_on_an_earlier_checkpoint_branches_off_there() -> None:
    """What came after it is not seen."""
    driver = driver_of(node("n"))
    driver.run(1)
    end_of_first = history(driver)[-1]
    driver.run(2)

    result = past(driver, end_of_first).run(3)

    assert ["1", "3"] == result.values


# a clock that was set back -------------------------------------------------


def test_a_fork_is_the_newest_although_the_clock_was_set_back() -> None:
    """Its checkpoints and versions come after those of the branch that was there."""
    driver = driver_of(node("n"))
    driver.run("x")
    first, last = history(driver)

    replayed = past(driver, first)
    replayed.clock = 0
    replayed.run(None)

    kept = history(driver)
    assert [first.checkpoint.id, last.checkpoint.id] == [
        each.checkpoint.id for each in kept[:2]
    ]
    assert 4 == len({each.checkpoint.id for each in kept})
    assert (
        kept[-1].checkpoint.channel_versions["out"]
        > last.checkpoint.channel_versions["out"]
    )


def test_an_edit_is_the_newest_although_the_clock_was_set_back() -> None:
    """Whichever checkpoint it edits."""
    driver = driver_of(node("n"))
    driver.run("x")
    options = Options(address=Address("t"), now=1)

    for saved in history(driver):
        driver.saver.commit(
            [edited(driver.program, options, saved, [StateUpdate("edited", "n")])]
        )

    assert ["input", "loop", "update", "update"] == [
        each.checkpoint.source for each in history(driver)
    ]


# again from an edit --------------------------------------------------------


def with_input_from(name: str, program: Program) -> Program:
    """Return *program* with a node that writes to its input channel."""
    edited = replace(program.nodes[name], writers=(lambda value, _: [("a", value)],))
    return replace(program, nodes={**program.nodes, name: edited})


def test_the_first_start_from_an_edit_needs_no_branch_beside_it() -> None:
    """The edit is one already."""
    driver = driver_of(node("n"))
    driver.run("x")
    made, options = with_input_from("n", driver.program), Options(address=Address("t"))
    driver.saver.commit(
        [edited(made, options, history(driver)[-1], [StateUpdate("y", "n")])]
    )

    past(driver, history(driver)[-1]).run(None)

    sources = [each.checkpoint.source for each in history(driver)]
    assert ["input", "loop", "update", "loop"] == sources


def test_results_of_before_a_second_start_from_an_edit_are_not_mixed_in() -> None:
    """Whoever starts again from a checkpoint by its id gets new results, after a crash
    too.
    """
    results = iter(["first", "second", "third"])
    crash = Raised(OSError("crash"))
    driver = driver_of(node("asked", lambda _: next(results)), node("other"))
    driver.run("x")
    made = with_input_from("asked", driver.program)
    options = Options(address=Address("t"))
    driver.saver.commit(
        [edited(made, options, history(driver)[-1], [StateUpdate("y", "asked")])]
    )
    edit = history(driver)[-1]

    for _ in range(2):
        broken = CrashDriver(
            driver.program,
            driver.saver,
            Options(address=edit.address),
            schedule=Schedule(ends(other=crash)),
        )
        with pytest.raises(OSError, match="crash"):
            broken.run(None)
    again(driver).run(None)

    assert ["third", "y"] == history(driver)[-1].checkpoint.values["out"][-2:]


def test_answers_of_before_a_second_start_from_an_edit_are_not_taken() -> None:
    """Its questions are asked anew, and get the answers that are given then."""
    driver = driver_of(node("n", ask))
    made, options = with_input_from("n", driver.program), Options(address=Address("t"))
    driver.run("x")
    driver.saver.commit(
        [edited(made, options, history(driver)[-1], [StateUpdate("y", "n")])]
    )
    edit = history(driver)[-1]
    past(driver, edit).run(None)
    again(driver).run(Command(resume="old"))

    past(driver, edit).run(None)
    for answer in ("one", "two"):
        again(driver).run(Command(resume=answer))

    assert [("one", "two")] == history(driver)[-1].checkpoint.values["out"]
