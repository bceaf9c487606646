"""Going on without ceremony: ``resume="auto"``, and ``run_id=`` as an idempotency
key.
"""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.channels import LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import ConfigurationError, InputMismatchError, RunNotice
from flowpregel.func import entrypoint, task
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.runtime import get_runtime
from tests.runs.notes import Notes


class Crashing:
    """A workflow that crashes as often as it is told to, and counts its tasks."""

    def __init__(self, executor: str, crashes: int = 1) -> None:
        seen = self.seen = Notes()
        self.crashes = crashes
        self.run_ids: list[str | None] = []

        @task
        def work(n: int) -> int:
            seen.append(n)
            return 2 * n

        @entrypoint(checkpointer=InMemorySaver(), executor=executor)
        def flow(given: Any, previous: Any = None) -> Any:
            info = get_runtime().execution_info
            assert info is not None
            self.run_ids.append(info.run_id)
            results = [future.result() for future in work.map(given["numbers"])]
            if self.crashes:
                self.crashes -= 1
                raise OSError("crash")
            return results

        self.flow = flow


def given(*numbers: int) -> dict[str, Any]:
    return {"numbers": list(numbers), "kind": {"a", "b"}}


def crash(drive: Any, made: Crashing, value: Any, **asked: Any) -> None:
    with pytest.raises(OSError, match="crash"):
        drive.invoke(made.flow, value, thread_id="1", **asked)


# ---------------------------------------------------------------- resume="auto"


def test_a_program_that_was_stopped_is_simply_run_again(
    drive: Any, executor: str
) -> None:
    """The same call starts the run, and goes on with it until it is done."""
    made = Crashing(executor, crashes=2)
    for _ in range(2):
        crash(drive, made, given(1, 2), resume="auto")

    assert [2, 4] == drive.invoke(made.flow, given(1, 2), thread_id="1", resume="auto")
    assert [1, 2] == sorted(made.seen)


def test_it_goes_on_with_a_run_that_was_started_without_it(
    drive: Any, executor: str
) -> None:
    """The input that was recorded is compared."""
    made = Crashing(executor)
    crash(drive, made, given(1, 2))

    with pytest.raises(
        InputMismatchError, match="thread '1' cannot resume with this input"
    ):
        drive.invoke(made.flow, given(1, 3), thread_id="1", resume="auto")
    assert [2, 4] == drive.invoke(made.flow, given(1, 2), thread_id="1", resume="auto")


def test_another_input_is_refused(drive: Any, executor: str) -> None:
    """Nothing is dropped in silence; the run can still go on."""
    made = Crashing(executor)
    crash(drive, made, given(1, 2), resume="auto")

    with pytest.raises(InputMismatchError, match="it was started with another input"):
        drive.invoke(made.flow, given(2, 1), thread_id="1", resume="auto")
    assert [2, 4] == drive.invoke(made.flow, None, thread_id="1")


def test_a_thread_whose_run_is_done_starts_a_new_one(drive: Any, executor: str) -> None:
    """Auto goes on with unfinished runs alone."""
    made = Crashing(executor, crashes=0)

    assert [2] == drive.invoke(made.flow, given(1), thread_id="1", resume="auto")
    assert [4] == drive.invoke(made.flow, given(2), thread_id="1", resume="auto")
    assert [1, 2] == made.seen


def test_a_run_that_goes_on_keeps_its_id(drive: Any, executor: str) -> None:
    """One run, one id, however often it was stopped."""
    made = Crashing(executor, crashes=2)
    crash(drive, made, given(1), resume="auto")
    crash(drive, made, None)
    drive.invoke(made.flow, given(1), thread_id="1", resume="auto")
    drive.invoke(made.flow, given(1), thread_id="1", resume="auto")

    first, second, third, other = made.run_ids
    assert first == second == third != other


def test_a_run_that_waits_for_an_answer_asks_again(drive: Any, executor: str) -> None:
    """It is unfinished, and goes on to where it stopped."""

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        return interrupt(n)

    asked = [
        drive.invoke(flow, 1, thread_id="1", resume="auto")["__interrupt__"]
        for _ in range(2)
    ]

    assert asked[0] == asked[1]
    assert "yes" == drive.invoke(flow, Command(resume="yes"), thread_id="1")


@pytest.mark.parametrize("value", [None, Command(resume=1)])
def test_auto_needs_an_input(drive: Any, value: Any) -> None:
    """There may be nothing to go on with."""
    with pytest.raises(ConfigurationError, match="needs the input"):
        drive.invoke(Crashing("inline").flow, value, thread_id="1", resume="auto")


def test_auto_needs_a_saver(drive: Any) -> None:
    """Nothing was kept to go on with."""

    @entrypoint()
    def flow(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match="no checkpointer"):
        drive.invoke(flow, 1, resume="auto")


def test_another_word_than_auto_is_refused(drive: Any) -> None:
    """The message says which there is."""
    with pytest.raises(ConfigurationError, match="resume='always'; use 'auto'"):
        drive.invoke(Crashing("inline").flow, given(1), thread_id="1", resume="always")


def test_a_refused_run_leaves_its_thread_free(drive: Any, executor: str) -> None:
    """The lease is given back, so that the right call can be made at once."""
    made = Crashing(executor)
    crash(drive, made, given(1), resume="auto")
    for _ in range(3):
        with pytest.raises(InputMismatchError):
            drive.invoke(made.flow, given(2), thread_id="1", resume="auto")

    assert [2] == drive.invoke(made.flow, given(1), thread_id="1", resume="auto")


def test_graphs_of_several_steps_go_on_too(drive: Any, executor: str) -> None:
    """Auto is no matter of entrypoints alone."""
    seen = Notes()

    def second(value: str) -> str:
        seen.append("second")
        if len(seen) < 3:
            raise OSError("crash")
        return value + "!"

    def first(value: str) -> str:
        seen.append("first")
        return value.upper()

    app = Pregel(
        nodes={
            "first": NodeBuilder().subscribe_only("a").do(first).write_to("b"),
            "second": NodeBuilder().subscribe_only("b").do(second).write_to("c"),
        },
        channels={name: LastValue(str) for name in "abc"},
        input_channels="a",
        output_channels="c",
        checkpointer=InMemorySaver(),
        executor=executor,
    )
    with pytest.raises(OSError, match="crash"):
        drive.invoke(app, "x", thread_id="1", resume="auto")
    with pytest.raises(InputMismatchError):
        drive.invoke(app, "y", thread_id="1", resume="auto")

    assert "X!" == drive.invoke(app, "x", thread_id="1", resume="auto")
    assert ["first", "second", "second"] == seen


# ---------------------------------------------------------------- run_id=


def test_a_run_asked_for_twice_is_done_once(drive: Any, executor: str) -> None:
    """The second call returns what was recorded."""
    made = Crashing(executor, crashes=0)

    results = [
        drive.invoke(made.flow, given(1), thread_id="1", run_id="order 7") for _ in "ab"
    ]

    assert [[2], [2]] == results
    assert [1] == made.seen


def test_an_unfinished_run_goes_on_by_its_id(drive: Any, executor: str) -> None:
    """A caller that does not know whether it was stopped may ask again."""
    made = Crashing(executor)
    crash(drive, made, given(1, 2), run_id="order 7")

    assert [2, 4] == drive.invoke(
        made.flow, given(1, 2), thread_id="1", run_id="order 7"
    )
    assert [1, 2] == sorted(made.seen)


def test_an_earlier_run_is_remembered_too(drive: Any, executor: str) -> None:
    """Other runs may have followed on its thread."""
    made = Crashing(executor, crashes=0)
    for n, run_id in enumerate(["a", "b", "c"]):
        drive.invoke(made.flow, given(n), thread_id="1", run_id=run_id)

    assert [0] == drive.invoke(made.flow, given(0), thread_id="1", run_id="a")
    assert [2] == drive.invoke(made.flow, given(1), thread_id="1", run_id="b")
    assert [0, 1, 2] == made.seen


def test_a_result_that_is_recorded_can_be_streamed(drive: Any, executor: str) -> None:
    """The stream shows the values, and no task."""
    made = Crashing(executor, crashes=0)
    drive.invoke(made.flow, given(1), thread_id="1", run_id="a")

    modes = ["values", "updates", "tasks"]
    items = drive.stream(
        made.flow, given(1), thread_id="1", run_id="a", stream_mode=modes
    )

    assert [("values", [2])] == items


@pytest.mark.parametrize("crashes", [0, 1], ids=["finished", "unfinished"])
def test_an_id_with_another_input_is_refused(
    drive: Any, executor: str, crashes: int
) -> None:
    """An idempotency key stands for one request."""
    made = Crashing(executor, crashes=crashes)
    if crashes:
        crash(drive, made, given(1), run_id="a")
    else:
        drive.invoke(made.flow, given(1), thread_id="1", run_id="a")

    with pytest.raises(InputMismatchError):
        drive.invoke(made.flow, given(2), thread_id="1", run_id="a")


def test_a_run_that_another_took_the_place_of_cannot_go_on(
    drive: Any, executor: str
) -> None:
    """New input drops what was unfinished; its id is spent."""
    made = Crashing(executor)
    crash(drive, made, given(1), run_id="a")
    with pytest.warns(
        RunNotice, match=r"1 finished call is left.*run\(\.\.\., id='1'\)"
    ):
        drive.invoke(made.flow, given(2), thread_id="1", run_id="b")

    with pytest.raises(ConfigurationError, match=r"'a'.*left unfinished.*a later run"):
        drive.invoke(made.flow, given(1), thread_id="1", run_id="a")


def test_ids_of_other_threads_do_not_count(drive: Any, executor: str) -> None:
    """A run belongs to its thread."""
    made = Crashing(executor, crashes=0)

    results = [
        drive.invoke(made.flow, given(1), thread_id=t, run_id="a") for t in ("1", "2")
    ]

    assert [[2], [2]] == results
    assert [1, 1] == made.seen


def test_a_run_without_a_saver_may_have_an_id(drive: Any) -> None:
    """It is then a name for logs and traces, as in LangGraph."""

    @entrypoint()
    def flow(n: int) -> Any:
        info = get_runtime().execution_info
        return info and info.run_id

    assert "a" == drive.invoke(flow, 1, run_id="a")
