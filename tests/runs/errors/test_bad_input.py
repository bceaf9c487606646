"""What cannot work is refused at once, by name, and with what to do instead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel._core.commands import Command, Send
from flowpregel._core.records import TASKS
from flowpregel.channels import BinaryOperatorAggregate, EphemeralValue, LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import (
    ConfigurationError,
    EmptyInputError,
    GraphRecursionError,
    InvalidUpdateError,
    UnknownInterruptError,
)
from flowpregel.pregel import ChannelWriteEntry, NodeBuilder, Pregel, PregelNode
from tests.graphs import fan_out, graph, on_input


def same(given: Any) -> Any:
    """Return what was given."""
    return given


def ask(given: Any) -> Any:
    """Ask about what was given."""
    return interrupt(given)


# -------------------------------------------------------------------- input


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no-saver", "saver"])
def test_no_input_names_the_channels_that_wait_for_it(drive: Any, saver: Any) -> None:
    """On a thread that has nothing to go on with."""
    app = fan_out(same, checkpointer=saver)

    with pytest.raises(EmptyInputError, match="no input for a"):
        drive.invoke(app, None, thread_id="new")


def test_an_empty_dict_of_input_is_no_input(drive: Any) -> None:
    """It would write to no channel."""
    with pytest.raises(EmptyInputError, match="no input for a"):
        drive.invoke(fan_out(same, input_channels=["a"]), {})


def test_an_unknown_input_channel_is_named_with_the_known_ones(drive: Any) -> None:
    """LangGraph drops such a value with a warning."""
    app = fan_out(same, input_channels=["a"])

    with pytest.raises(InvalidUpdateError, match=r"'b' is not an input channel.*: a"):
        drive.invoke(app, {"a": 1, "b": 2})


def test_several_input_channels_take_a_dict(drive: Any) -> None:
    """A bare value is for nobody."""
    with pytest.raises(TypeError, match="dict with keys of a, out"):
        drive.invoke(fan_out(same, input_channels=["a", "out"]), 1)


def test_an_empty_command_says_what_to_give_it(drive: Any) -> None:
    """It neither answers nor writes nor goes anywhere."""
    app = fan_out(same, checkpointer=InMemorySaver())
    drive.invoke(app, 1, thread_id="t")

    with pytest.raises(EmptyInputError, match="update, resume or goto"):
        drive.invoke(app, Command(), thread_id="t")


def test_a_command_cannot_go_to_a_node_that_is_not_there(drive: Any) -> None:
    """The message names those that are."""
    with pytest.raises(InvalidUpdateError, match=r"'nowhere'.*n0"):
        drive.invoke(fan_out(same), Command(goto=Send("nowhere", 1)))


def test_a_command_cannot_write_to_a_channel_that_is_not_there(drive: Any) -> None:
    """The message names those that are."""
    with pytest.raises(InvalidUpdateError, match=r"'nowhere'.*a, out"):
        drive.invoke(fan_out(same), Command(update={"nowhere": 1}))


def test_a_command_to_the_parent_of_an_outermost_graph_is_refused(drive: Any) -> None:
    """There is none."""
    with pytest.raises(InvalidUpdateError, match="no parent graph"):
        drive.invoke(fan_out(same), Command(graph=Command.PARENT, update={"a": 1}))


# -------------------------------------------------------------------- resuming


def test_a_resume_of_nothing_says_that_nothing_waits(drive: Any) -> None:
    """The thread has run to its end."""
    app = fan_out(same, checkpointer=InMemorySaver())
    drive.invoke(app, 1, thread_id="t")

    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(app, Command(resume="yes"), thread_id="t")


def test_a_resume_of_a_thread_that_never_ran_is_refused(drive: Any) -> None:
    """It is not taken for input."""
    app = fan_out(same, checkpointer=InMemorySaver())

    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(app, Command(resume="yes"), thread_id="new")


def test_a_resume_without_a_saver_is_refused(drive: Any) -> None:
    """Nothing was kept."""
    with pytest.raises(ConfigurationError, match="without checkpointer"):
        drive.invoke(fan_out(ask), Command(resume="yes"))


def test_an_interrupt_without_a_saver_names_the_node_and_the_remedy(
    drive: Any, executor: str
) -> None:
    """The question could never be answered."""
    with pytest.raises(
        ConfigurationError, match=r"'n0' called interrupt\(\).*checkpointer="
    ):
        drive.invoke(fan_out(ask, executor=executor), 1)


def test_one_answer_for_several_questions_is_refused(drive: Any) -> None:
    """The error lists the questions."""
    app = fan_out(ask, ask, checkpointer=InMemorySaver())
    drive.invoke(app, 1, thread_id="t")

    with pytest.raises(
        UnknownInterruptError, match="2 interrupts are waiting"
    ) as caught:
        drive.invoke(app, Command(resume="yes"), thread_id="t")

    assert "ambiguous" == caught.value.reason
    assert 2 == len(caught.value.pending_ids)


def test_an_answer_to_a_question_that_nobody_asked_is_refused(drive: Any) -> None:
    """LangGraph ignores it."""
    app = fan_out(ask, checkpointer=InMemorySaver())
    drive.invoke(app, 1, thread_id="t")

    with pytest.raises(UnknownInterruptError, match=r"0{32} is not waiting"):
        drive.invoke(app, Command(resume={"0" * 32: "yes"}), thread_id="t")


# -------------------------------------------------------------------- channels


def test_two_writes_to_a_last_value_name_the_channel(drive: Any, executor: str) -> None:
    """Which of them would be the last?"""
    app = fan_out(same, same, channels={"out": LastValue(int)}, executor=executor)

    with pytest.raises(InvalidUpdateError, match="'out'"):
        drive.invoke(app, 1)


def test_a_reducer_that_raises_is_named(drive: Any, executor: str) -> None:
    """Its own error comes through, with a note that names the channel."""

    def divide(total: float, by: float) -> float:
        return total / by

    channels = {"out": BinaryOperatorAggregate(float, divide)}
    app = fan_out(lambda _: 0, channels=channels, executor=executor)

    with pytest.raises(ZeroDivisionError) as caught:
        drive.invoke(app, 1)

    assert any("'out'" in note for note in caught.value.__notes__)


def test_a_reducer_that_raises_keeps_what_the_tasks_did(drive: Any) -> None:
    """With the reducer repaired, the run goes on without running them again."""
    runs: list[int] = []
    broken = [True]

    def fold(total: int, item: int) -> int:
        if broken:
            raise ZeroDivisionError
        return total + item

    channels = {"out": BinaryOperatorAggregate(int, fold)}
    app = fan_out(
        lambda x: runs.append(x) or x, channels=channels, checkpointer=InMemorySaver()
    )
    with pytest.raises(ZeroDivisionError):
        drive.invoke(app, 3, thread_id="t")
    broken.clear()

    assert 3 == drive.invoke(app, None, thread_id="t")
    assert [3] == runs


# -------------------------------------------------------------------- what nodes write


def writing(*writes: Any) -> PregelNode:
    """Return a node whose writer ignores its checks, as one of a user's own would."""
    node = NodeBuilder().subscribe_only("a").build()
    node.writers.append(lambda _output, _scope: [*writes])
    return node


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (("nowhere", 1), r"node 'n' wrote to channel 'nowhere'.*a, out"),
        ((TASKS, Send("nobody", 1)), r"node 'n' sent to node 'nobody'.*n"),
        ((TASKS, "nobody"), r"node 'n' sent 'nobody', which is not a Send"),
    ],
)
def test_a_node_that_writes_what_nobody_takes_fails_by_name(
    drive: Any, executor: str, write: Any, message: str
) -> None:
    """LangGraph logs a warning, and drops it."""
    with pytest.raises(InvalidUpdateError, match=message):
        drive.invoke(graph({"n": writing(write)}, executor=executor), 1)


def test_a_channel_that_a_node_writes_is_looked_for_when_the_graph_is_built() -> None:
    """Long before it runs."""
    with pytest.raises(
        ConfigurationError, match=r"'n' writes to channel 'nowhere'.*'out'"
    ):
        graph({"n": on_input(same, "nowhere")})


@pytest.mark.parametrize("bad", [3, "text", object()])
def test_something_that_cannot_be_called_is_no_node(bad: Any) -> None:
    """Neither a callable nor anything with `invoke`."""
    with pytest.raises(ConfigurationError, match="cannot be a node"):
        fan_out(bad).invoke(1)


def test_a_send_is_not_written_by_an_entry() -> None:
    """The channel of what is sent is reserved."""
    with pytest.raises(InvalidUpdateError, match="returning Send"):
        ChannelWriteEntry(TASKS)


# -------------------------------------------------------------------- limits


def test_a_cycle_that_hits_the_limit_keeps_its_last_state(
    drive: Any, executor: str
) -> None:
    """The error says how many supersteps there were to be, and a larger limit goes
    on.
    """
    app = Pregel(
        nodes={
            "n": NodeBuilder().subscribe_only("a").do(lambda n: n + 1).write_to("a")
        },
        channels={"a": LastValue(int)},
        input_channels="a",
        output_channels="a",
        checkpointer=InMemorySaver(),
        executor=executor,
    )

    with pytest.raises(GraphRecursionError, match="after 5 supersteps") as caught:
        drive.invoke(app, 0, thread_id="t", recursion_limit=5)
    state = app.get_state(thread_id="t")

    assert 5 == caught.value.limit
    assert 6 == state.values["a"]
    assert ("n",) == state.next


# -------------------------------------------------------------------- where tasks run


def test_an_async_node_in_a_sync_run_says_how_to_run_it(executor: str) -> None:
    """It fails as that node does, before anything of it runs."""

    async def later(given: Any) -> Any:
        return given

    with pytest.raises(TypeError, match=r"'n0' is async.*ainvoke"):
        fan_out(later, executor=executor).invoke(1)


def test_a_function_that_returns_a_coroutine_says_the_same(executor: str) -> None:
    """What it is shows only when it is called."""

    async def later(given: Any) -> Any:
        return given

    with pytest.raises(TypeError, match=r"'n0' is async.*ainvoke"):
        fan_out(lambda given: later(given), executor=executor).invoke(1)


def test_a_timeout_that_cannot_be_kept_is_refused(drive: Any, executor: str) -> None:
    """Nothing can stop an OS thread."""
    app = graph({"n": on_input(same).set_timeout(1)}, executor=executor)

    with pytest.raises(
        ConfigurationError, match=r"'n' has a timeout.*executor='processes'"
    ):
        drive.invoke(app, 1)


@pytest.mark.parametrize("executor", ["process", 3, object()])
def test_an_executor_that_nobody_knows_is_refused_with_those_there_are(
    executor: Any,
) -> None:
    """For a graph, and for a node."""
    with pytest.raises(ConfigurationError, match="'processes', 'threads', 'inline'"):
        fan_out(same, executor=executor)
    with pytest.raises(ConfigurationError, match="'processes', 'threads', 'inline'"):
        graph({"n": on_input(same).run_on(executor)})


# -------------------------------------------------------------------- settings


def test_a_run_with_a_saver_needs_a_thread_id(drive: Any) -> None:
    """The message shows both ways to pass it."""
    app = fan_out(same, checkpointer=InMemorySaver())

    with pytest.raises(ConfigurationError, match=r"thread_id='...'.*configurable"):
        drive.invoke(app, 1)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (
            {"stream_mode": "valuse"},
            ConfigurationError,
            "'valuse' is unknown.*values, updates",
        ),
        ({"stream_mode": ["values", "x"]}, ConfigurationError, "'x' is unknown"),
        ({"durability": "always"}, ConfigurationError, "'sync', 'async' or 'exit'"),
        ({"threadid": "t"}, TypeError, "'threadid'.*thread_id"),
        ({"run_id": 7}, ConfigurationError, "run_id must be text or a UUID, not 7"),
        ({"run_id": ""}, ConfigurationError, "run_id must be text or a UUID, not ''"),
        (
            {"recursion_limit": 0},
            ConfigurationError,
            "recursion_limit must be at least 1",
        ),
        (
            {"max_concurrency": True},
            ConfigurationError,
            "max_concurrency must be at least 1",
        ),
        ({"tags": "one"}, ConfigurationError, "tags must be a list"),
        ({"tags": 5}, ConfigurationError, "tags must be a list of texts, not 5"),
        ({"thread_id": 3.5}, ConfigurationError, "thread_id must be text"),
        ({"output_keys": "x"}, ConfigurationError, "output_keys names 'x'.*a, out"),
        ({"config": {"recursion": 3}}, ConfigurationError, "no key 'recursion'"),
        ({"config": ["thread"]}, ConfigurationError, "config must be a dict"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_be_is_refused(
    drive: Any, asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    """With its name, and what it may be."""
    asked = {"thread_id": "t", **asked}
    app = fan_out(same, checkpointer=InMemorySaver())

    with pytest.raises(error, match=message):
        drive.stream(app, 1, **asked)


def test_a_checkpoint_that_is_not_there_is_named(drive: Any) -> None:
    """With its thread."""
    app = fan_out(same, checkpointer=InMemorySaver())

    with pytest.raises(LookupError, match="'t' has no checkpoint 'x'"):
        drive.invoke(app, None, thread_id="t", checkpoint_id="x")


def test_an_outermost_graph_has_no_graph_around_to_borrow_a_saver_from(
    drive: Any,
) -> None:
    """``checkpointer=True`` is for nested graphs."""
    with pytest.raises(
        ConfigurationError, match="checkpointer=True cannot be used for root"
    ):
        drive.invoke(fan_out(same, checkpointer=True), 1, thread_id="t")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_channels": "b"}, "the input channel 'b'"),
        ({"output_channels": ["b"]}, "the output channel 'b'"),
        ({"stream_channels": "b"}, "the output channel 'b'"),
        (
            {"channels": {"b": EphemeralValue(int)}, "input_channels": "b"},
            "not subscribed to",
        ),
        ({"interrupt_before_nodes": ["x"]}, "breakpoint names node 'x'.*n0"),
        ({"channels": {"__return__": LastValue(int)}}, "'__return__' is reserved"),
        ({"channels": {TASKS: LastValue(int)}}, "reserved and must be a Topic"),
        ({"channels": {"b": int}}, "neither a channel nor a managed value"),
        ({"checkpointer": 3}, "Invalid checkpointer 3"),
    ],
)
def test_a_graph_that_does_not_fit_together_is_refused_when_it_is_built(
    change: dict[str, Any], message: str
) -> None:
    """The message says what is there."""
    with pytest.raises(ConfigurationError, match=message):
        fan_out(same, **change)


def test_an_executor_of_the_standard_library_is_taken() -> None:
    """Any `concurrent.futures.Executor` is."""
    with ThreadPoolExecutor(1) as pool:
        fan_out(same, executor=pool)
