"""A thread's past: looked at, replayed, branched from and edited."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.channels import DeltaChannel, Overwrite
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError, InvalidUpdateError
from flowpregel.graph import END, START, CompiledStateGraph, StateGraph
from flowpregel.types import Command, Send, StateUpdate, interrupt
from tests.graphs import extend
from tests.runs.conftest import Drive


class Log(TypedDict, total=False):
    """A list that adds up, one that is kept as deltas, and a plain value."""

    items: Annotated[list[Any], operator.add]
    deltas: Annotated[list[Any], DeltaChannel(extend)]
    last: str


def step(name: str) -> Any:
    """Return a node that writes its name everywhere."""
    return lambda _: {"items": [name], "deltas": [name], "last": name}


def line(saver: BaseCheckpointSaver, *names: str, **options: Any) -> CompiledStateGraph:
    """Return nodes that run one after the other."""
    builder = StateGraph(Log).add_sequence([(name, step(name)) for name in names])
    builder.add_edge(START, names[0])
    return builder.compile(saver, executor="inline", **options)


def steps_of(app: CompiledStateGraph) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return step, source and what is next of every checkpoint, newest first."""
    return [
        (item.metadata["step"], item.metadata["source"], item.next)  # type: ignore[index]
        for item in app.get_state_history(thread_id="1")
    ]


def before(app: CompiledStateGraph, node: str) -> Any:
    """Return the config of the oldest checkpoint at which *node* was next."""
    return [
        i.config for i in app.get_state_history(thread_id="1") if i.next == (node,)
    ][-1]


def test_a_history_has_a_checkpoint_for_the_input_and_each_superstep(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Newest first, each with what it held and what was next."""
    app = line(saver, "a", "b")

    drive.invoke(app, {"items": ["in"]}, thread_id="1")

    assert [
        (2, "loop", ()),
        (1, "loop", ("b",)),
        (0, "loop", ("a",)),
        (-1, "input", ("__start__",)),
    ] == steps_of(app)
    values = [item.values for item in app.get_state_history(thread_id="1")]
    assert [["in", "a", "b"], ["in", "a"], ["in"], []] == [v["items"] for v in values]
    assert [["a", "b"], ["a"], [], []] == [v.get("deltas", []) for v in values]


def test_a_replay_runs_again_what_followed_on_a_branch_of_its_own(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The old branch stays as it is."""
    app = line(saver, "a", "b")
    drive.invoke(app, {"items": ["in"]}, thread_id="1")
    old = app.get_state(thread_id="1")

    again = drive.invoke(app, None, before(app, "b"))

    assert ["in", "a", "b"] == again["items"]
    assert ["a", "b"] == again["deltas"]
    assert old.values == app.get_state(old.config).values
    assert [(2, "loop", ()), (2, "fork", ("b",))] == [
        (2, "loop", ()),
        *[item for item in steps_of(app) if item[1] == "fork"],
    ]


def test_an_update_of_an_old_checkpoint_makes_a_branch(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Going on from it uses the edited state; deltas are those of the branch."""
    app = line(saver, "a", "b", "c")
    drive.invoke(app, {"items": ["in"]}, thread_id="1")

    branch = app.update_state(before(app, "b"), {"items": ["e"], "deltas": ["e"]}, "a")
    result = drive.invoke(app, None, branch)

    assert ["in", "a", "e", "b", "c"] == result["items"]
    assert ["a", "e", "b", "c"] == result["deltas"]


def test_a_branch_of_a_branch_and_the_old_one_go_on_side_by_side(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Each has its own line of deltas."""
    app = line(saver, "a", "b", "c", interrupt_before=["b", "c"])
    drive.invoke(app, {"items": []}, thread_id="1")
    old = app.get_state(thread_id="1").config
    one = app.update_state(old, {"deltas": ["one"]}, "a")
    two = app.update_state(one, {"deltas": ["two"]}, "a")

    found = [drive.invoke(app, None, config)["deltas"] for config in (two, old, one)]

    assert [["a", "one", "two", "b"], ["a", "b"], ["a", "one", "b"]] == found


@pytest.mark.parametrize("frequency", [1, 2, 3, None])
def test_deltas_are_rebuilt_at_every_checkpoint_whatever_the_snapshots(
    drive: Drive, saver: BaseCheckpointSaver, frequency: int | None
) -> None:
    """An overwrite among them, too."""

    class State(TypedDict, total=False):
        deltas: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=frequency)]

    State.__annotations__["deltas"] = Annotated[
        list[Any], DeltaChannel(extend, snapshot_frequency=frequency)
    ]
    nodes: list[Any] = [(f"n{i}", lambda _, i=i: {"deltas": [i]}) for i in range(5)]
    nodes.insert(3, ("over", lambda _: {"deltas": Overwrite(["over"])}))
    app = StateGraph(State).add_sequence(nodes).add_edge(START, "n0")
    app = app.compile(saver, executor="inline")

    drive.invoke(app, {"deltas": ["in"]}, thread_id="1")

    history = [
        item.values.get("deltas") for item in app.get_state_history(thread_id="1")
    ]
    assert [
        ["over", 3, 4],
        ["over", 3],
        ["over"],
        ["in", 0, 1, 2],
        ["in", 0, 1],
        ["in", 0],
        ["in"],
        [],
    ] == history


def test_an_update_counts_as_the_node_that_wrote_last(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Unless it is told which; what follows that node is next."""
    app = line(saver, "a", "b", interrupt_before=["b"])
    drive.invoke(app, {"items": []}, thread_id="1")

    app.update_state(None, {"items": ["edit"]}, thread_id="1")

    assert ("b",) == app.get_state(thread_id="1").next
    assert ["a", "edit", "b"] == drive.invoke(app, None, thread_id="1")["items"]


def test_an_update_follows_the_conditional_edges_of_its_node(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """They see the state with the update in it."""
    builder = StateGraph(Log).add_node("a", step("a")).add_node("b", step("b"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges(
        "a", lambda s: "b" if "edit" in s["items"] else END, ["b", END]
    )
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")

    app.update_state(None, {"items": ["edit"]}, "a", thread_id="1")

    assert ("b",) == app.get_state(thread_id="1").next


def test_the_end_as_a_node_drops_what_is_left_to_do(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The state stays."""
    app = line(saver, "a", "b", interrupt_before=["b"])
    drive.invoke(app, {"items": []}, thread_id="1")

    app.update_state(None, None, END, thread_id="1")

    state = app.get_state(thread_id="1")
    assert (("a",), ()) == (tuple(state.values["items"]), state.next)


def test_an_update_as_input_starts_anew(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """What follows is what follows an input."""
    app = line(saver, "a")

    app.update_state(None, {"items": ["in"]}, "__input__", thread_id="1")

    assert ("__start__",) == app.get_state(thread_id="1").next
    assert ["in", "a"] == drive.invoke(app, None, thread_id="1")["items"]


def test_a_copy_is_a_sibling_with_the_same_state(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It has the same parent, and can be gone on from."""
    app = line(saver, "a", "b", interrupt_before=["b"])
    drive.invoke(app, {"items": []}, thread_id="1")
    old = app.get_state(thread_id="1")

    copied = app.get_state(app.update_state(old.config, None, "__copy__"))

    assert (old.values, old.next) == (copied.values, copied.next)
    assert old.parent_config == copied.parent_config
    assert "fork" == copied.metadata["source"]


def test_a_bulk_update_makes_a_checkpoint_for_each_superstep(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Several nodes in one superstep fold together."""
    app = line(saver, "a", "b")

    app.bulk_update_state(
        {"configurable": {"thread_id": "1"}},
        [
            [StateUpdate({"items": ["in"]}, "__input__")],
            [StateUpdate({"items": [1]}, "a"), StateUpdate({"items": [2]}, "b")],
        ],
    )

    assert [0, -1] == [item[0] for item in steps_of(app)]
    assert [1, 2] == app.get_state(thread_id="1").values["items"]


@pytest.mark.parametrize(
    ("supersteps", "error", "message"),
    [
        ([], ConfigurationError, "No supersteps provided"),
        ([[]], ConfigurationError, "No updates provided"),
        (
            [[StateUpdate({}, "nobody")]],
            InvalidUpdateError,
            "Node 'nobody' does not exist",
        ),
        (
            [[StateUpdate({}, "a"), StateUpdate({})]],
            InvalidUpdateError,
            "as_node is required",
        ),
    ],
)
def test_an_update_that_cannot_be_made_says_why(
    supersteps: Any, error: type[Exception], message: str, saver: BaseCheckpointSaver
) -> None:
    """And changes nothing."""
    app = line(saver, "a")

    with pytest.raises(error, match=message):
        app.bulk_update_state({"configurable": {"thread_id": "1"}}, supersteps)
    assert [] == steps_of(app)


def test_a_replay_asks_again(drive: Drive, saver: BaseCheckpointSaver) -> None:
    """An answer belongs to the branch on which it was given."""
    builder = StateGraph(Log).add_node("a", step("a"))
    builder.add_node("ask", lambda _: {"items": [interrupt("?")]})
    builder.add_edge(START, "a").add_edge("a", "ask")
    app = builder.compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")
    drive.invoke(app, Command(resume="first"), thread_id="1")

    stopped = drive.invoke(app, None, before(app, "ask"))

    assert "?" == stopped["__interrupt__"][0].value
    assert ["a", "other"] == drive.invoke(app, Command(resume="other"), thread_id="1")[
        "items"
    ]


def test_a_history_can_be_filtered_and_bounded(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """By metadata, by number, and by a checkpoint it ends before."""
    app = line(saver, "a", "b")
    drive.invoke(app, {"items": []}, thread_id="1")
    bound = before(app, "b")

    def history(**asked: Any) -> list[int]:
        found = app.get_state_history(thread_id="1", **asked)
        return [item.metadata["step"] for item in found]  # type: ignore[index]

    assert [-1] == history(filter={"source": "input"})
    assert [2, 1] == history(limit=2)
    assert [0, -1] == history(before=bound)


def test_a_thread_without_a_checkpointer_has_no_state() -> None:
    """The error says what to pass."""
    app = StateGraph(Log).add_node("a", step("a")).add_edge(START, "a").compile()

    with pytest.raises(ConfigurationError, match="No checkpointer set"):
        app.get_state(thread_id="1")


def test_a_second_input_goes_on_with_the_state_of_the_thread(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Reducers fold the new input into what is there."""
    app = line(saver, "a")

    drive.invoke(app, {"items": [1]}, thread_id="1")

    assert [1, "a", 2, "a"] == drive.invoke(app, {"items": [2]}, thread_id="1")["items"]


AT = {"configurable": {"thread_id": "1"}}


def asking(saver: BaseCheckpointSaver, node: str, *, sends: bool) -> CompiledStateGraph:
    """Return a graph that leads, or sends, to *node*, which asks."""
    builder = StateGraph(Log).add_node(node, lambda _: {"items": [interrupt("?")]})
    builder.add_node("lead", step("lead")).add_edge(START, "lead")
    if sends:
        builder.add_conditional_edges("lead", lambda _: [Send(node, {})], [node])
    else:
        builder.add_edge("lead", node)
    return builder.compile(saver, executor="inline")


# The condition of the edge has changed too: it names the other node.
@pytest.mark.filterwarnings("ignore:condition of node lead")
@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("given", [None, Command(resume="yes")])
def test_a_thread_does_not_go_on_without_the_node_that_was_due(
    drive: Drive, saver: BaseCheckpointSaver, given: Any, sends: bool
) -> None:
    """As when it has another name since: half of a run is not shown as all of it."""
    drive.invoke(asking(saver, "ask", sends=sends), {"items": []}, thread_id="1")
    app = asking(saver, "enquire", sends=sends)

    with pytest.raises(
        InvalidUpdateError, match=r"to node 'ask', which does not exist; .*enquire"
    ):
        drive.invoke(app, given, thread_id="1")
    assert () == app.get_state(AT).next
    drive.invoke(
        asking(saver, "ask", sends=sends), Command(resume="yes"), thread_id="1"
    )


# The condition of the edge has changed too: it names the other node.
@pytest.mark.filterwarnings("ignore:condition of node lead")
@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("way", ["edit", "goto", "input"])
def test_a_thread_whose_next_node_is_gone_can_go_on_elsewhere(
    drive: Drive, saver: BaseCheckpointSaver, way: str, sends: bool
) -> None:
    """And is not told of that node again."""
    drive.invoke(asking(saver, "ask", sends=sends), {"items": []}, thread_id="1")
    app = asking(saver, "enquire", sends=sends)

    if way == "edit":
        app.update_state(AT, {"items": ["edit"]}, as_node="lead")
    given = {"edit": None, "goto": Command(goto="enquire"), "input": {"items": []}}[way]
    (question,) = drive.invoke(app, given, thread_id="1")["__interrupt__"]

    answer = Command(resume={question.id: "yes"})
    assert "yes" == drive.invoke(app, answer, thread_id="1")["items"][-1]
