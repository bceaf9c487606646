"""The examples that show what Pregel is, each with the result that its document
gives.
"""

from __future__ import annotations

import operator
from typing import Any

import pytest

from flowpregel.channels import (
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
)
from flowpregel.pregel import (
    Channel,
    ChannelWrite,
    ChannelWriteEntry,
    NodeBuilder,
    Pregel,
    PregelNode,
)


def twice(text: str) -> str:
    """Return *text* two times."""
    return text + text


def both(pipe: PregelNode, builder: NodeBuilder) -> list[Any]:
    """Return the two ways in which an example writes a node."""
    return [pytest.param(pipe, id="pipe"), pytest.param(builder, id="builder")]


# ------------------------------------------------ LangGraph's runtime: its examples


@pytest.mark.parametrize(
    "node",
    both(
        Channel.subscribe_to("a") | twice | Channel.write_to("b"),
        NodeBuilder().subscribe_only("a").do(twice).write_to("b"),
    ),
)
def test_a_single_node(drive: Any, executor: str, node: Any) -> None:
    """One node reads ``a`` and writes ``b``."""
    app = Pregel(
        nodes={"node1": node},
        channels={"a": EphemeralValue(str), "b": EphemeralValue(str)},
        input_channels=["a"],
        output_channels=["b"],
        executor=executor,
    )

    assert {"b": "foofoo"} == drive.invoke(app, {"a": "foo"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            Channel.subscribe_to("a") | twice | Channel.write_to("b"),
            Channel.subscribe_to("b") | twice | Channel.write_to("c"),
            id="pipe",
        ),
        pytest.param(
            NodeBuilder().subscribe_only("a").do(twice).write_to("b"),
            NodeBuilder().subscribe_only("b").do(twice).write_to("c"),
            id="builder",
        ),
    ],
)
def test_multiple_nodes(drive: Any, executor: str, first: Any, second: Any) -> None:
    """The second node reads what the first wrote, one superstep later."""
    app = Pregel(
        nodes={"node1": first, "node2": second},
        channels={
            "a": EphemeralValue(str),
            "b": LastValue(str),
            "c": EphemeralValue(str),
        },
        input_channels=["a"],
        output_channels=["b", "c"],
        executor=executor,
    )

    assert {"b": "foofoo", "c": "foofoofoofoo"} == drive.invoke(app, {"a": "foo"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            Channel.subscribe_to("a")
            | twice
            | {"b": Channel.write_to("b"), "c": Channel.write_to("c")},
            Channel.subscribe_to("b") | twice | {"c": Channel.write_to("c")},
            id="pipe",
        ),
        pytest.param(
            NodeBuilder().subscribe_only("a").do(twice).write_to("b", "c"),
            NodeBuilder().subscribe_to("b").do(lambda x: x["b"] + x["b"]).write_to("c"),
            id="builder",
        ),
    ],
)
def test_a_topic_gathers_what_several_nodes_write(
    drive: Any, executor: str, first: Any, second: Any
) -> None:
    """It accumulates over supersteps."""
    app = Pregel(
        nodes={"node1": first, "node2": second},
        channels={
            "a": EphemeralValue(str),
            "b": EphemeralValue(str),
            "c": Topic(str, accumulate=True),
        },
        input_channels=["a"],
        output_channels=["c"],
        executor=executor,
    )

    assert {"c": ["foofoo", "foofoofoofoo"]} == drive.invoke(app, {"a": "foo"})


@pytest.mark.parametrize(
    ("word", "expected"),
    [(None, "foofoo | foofoofoofoo"), ("update", "foofoo | update")],
    ids=["builder", "pipe"],
)
def test_a_reducer_folds_what_several_nodes_write(
    drive: Any, executor: str, word: str | None, expected: str
) -> None:
    """The document with pipes joins the word "update", the one with builders the
    update.
    """

    def reducer(current: str, update: str) -> str:
        return current + " | " + (word or update) if current else update

    app = Pregel(
        nodes={
            "node1": Channel.subscribe_to("a")
            | twice
            | {"b": Channel.write_to("b"), "c": Channel.write_to("c")},
            "node2": NodeBuilder().subscribe_only("b").do(twice).write_to("c"),
        },
        channels={
            "a": EphemeralValue(str),
            "b": EphemeralValue(str),
            "c": BinaryOperatorAggregate(str, operator=reducer),
        },
        input_channels=["a"],
        output_channels=["c"],
        executor=executor,
    )

    assert {"c": expected} == drive.invoke(app, {"a": "foo"})


def grown(text: str) -> str | None:
    """Return *text* two times, until it is long."""
    return text + text if len(text) < 10 else None


@pytest.mark.parametrize(
    "node",
    both(
        Channel.subscribe_to("value")
        | grown
        | ChannelWrite(writes=[ChannelWriteEntry(channel="value", skip_none=True)]),
        NodeBuilder()
        .subscribe_only("value")
        .do(grown)
        .write_to(ChannelWriteEntry("value", skip_none=True)),
    ),
)
def test_a_cycle_goes_on_until_nothing_is_written(
    drive: Any, executor: str, node: Any
) -> None:
    """A node writes the channel that triggers it."""
    app = Pregel(
        nodes={"example_node": node},
        channels={"value": EphemeralValue(str)},
        input_channels=["value"],
        output_channels=["value"],
        executor=executor,
    )

    assert {"value": "aaaaaaaaaaaaaaaa"} == drive.invoke(app, {"value": "a"})


# ------------------------------------------------ Pregel as actors: its examples


class Lambda:
    """What LangChain would wrap a function in: something with `invoke`."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def invoke(self, given: Any) -> Any:
        """Call the function."""
        return self.func(given)


def of_parts() -> PregelNode:
    """Return a node whose writer was appended to it, and that calls something with
    ``invoke``.
    """
    node = PregelNode(
        channels="input", triggers=["input"], bound=Lambda(lambda args: args)
    )
    node.writers.append(ChannelWrite(writes=[ChannelWriteEntry(channel="output")]))
    return node


def by_builder() -> NodeBuilder:
    """Return the builder of the same node."""
    return (
        NodeBuilder().subscribe_only("input").do(lambda args: args).write_to("output")
    )


@pytest.mark.parametrize(
    "node",
    [of_parts(), by_builder().build(), by_builder()],
    ids=["parts", "built", "builder"],
)
def test_a_node_is_one_however_it_is_made(drive: Any, executor: str, node: Any) -> None:
    """Of its parts, or by its builder, which a graph takes as it takes the node that it
    builds.
    """
    app = Pregel(
        nodes={"body": node},
        channels={"input": LastValue(str), "output": LastValue(str)},
        input_channels=["input"],
        output_channels=["output"],
        executor=executor,
    )

    assert {"output": "foobar"} == drive.invoke(app, input_of(app))


def input_of(app: Pregel) -> dict[str, str]:
    """Return the input of the examples above."""
    return dict.fromkeys(app.input_channels, "foobar")


def handle(state: dict[str, Any]) -> dict[str, Any]:
    """Answer each of the two inputs under the name of an output."""
    return {"baz": state["foo"], "qux": state["bar"]}


def unpacked(foo: str, bar: str) -> dict[str, Any]:
    """Do the same, with a parameter for each channel."""
    return {"baz": foo, "qux": bar}


MAPPED = {"baz": "abc", "qux": "xyz"}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            NodeBuilder()
            .subscribe_to("foo", "bar")
            .do(handle)
            .write_to(baz=lambda r: r["baz"], qux=lambda r: r["qux"]),
            MAPPED,
            id="named-mappers",
        ),
        pytest.param(
            NodeBuilder().subscribe_to("foo", "bar").do(handle).write_to("baz", "qux"),
            {"baz": MAPPED, "qux": MAPPED},
            id="broadcast",
        ),
        pytest.param(
            NodeBuilder()
            .subscribe_to("foo", "bar")
            .do(handle)
            .write_to(
                ChannelWriteEntry(channel="baz", mapper=lambda r: r["baz"]),
                ChannelWriteEntry(channel="qux", mapper=lambda r: r["qux"]),
            ),
            MAPPED,
            id="entries",
        ),
        pytest.param(
            NodeBuilder()
            .subscribe_to("foo", "bar")
            .do(lambda state: unpacked(**state))
            .write_to(
                ChannelWriteEntry(channel="baz", mapper=lambda s: s["baz"]),
                ChannelWriteEntry(channel="qux", mapper=lambda s: s["qux"]),
            ),
            MAPPED,
            id="unpacked",
        ),
    ],
)
def test_several_channels_are_read_and_written(
    drive: Any, executor: str, node: Any, expected: Any
) -> None:
    """Two inputs come in one dict; outputs are mapped one by one, or broadcast."""
    app = Pregel(
        nodes={"body": node},
        channels={name: LastValue(str) for name in ("foo", "bar", "baz", "qux")},
        input_channels=["foo", "bar"],
        output_channels=["baz", "qux"],
        executor=executor,
    )

    assert expected == drive.invoke(app, {"foo": "abc", "bar": "xyz"})


def signalled(name: str, **writes: Any) -> NodeBuilder:
    """Return a node that its own channel triggers, and that only writes."""
    return NodeBuilder().subscribe_to(name, read=False).write_to(**writes)


def test_a_node_waits_for_another_by_its_channel(drive: Any, executor: str) -> None:
    """Each node writes its name, and the channel that triggers the next one."""
    app = Pregel(
        nodes={
            "foo": signalled("foo", output="foo", bar=None),
            "bar": signalled("bar", output="bar", baz=None),
            "baz": signalled("baz", output="baz"),
        },
        channels={
            **{name: LastValue(None) for name in ("foo", "bar", "baz")},
            "output": BinaryOperatorAggregate(str, operator=lambda a, b: f"{a},{b}"),
        },
        input_channels=["foo"],
        output_channels=["output"],
        executor=executor,
    )

    assert {"output": ",foo,bar,baz"} == drive.invoke(app, {"foo": None})


def join(qux: Any, last: NodeBuilder, **signals: Any) -> Pregel:
    """Return the graph in which ``qux`` is to run after ``bar`` and ``foo`` then
    ``baz``.
    """
    return Pregel(
        nodes={
            "foo": signalled("foo", output=["foo"], baz=None),
            "bar": signalled("bar", output=["bar"], qux=signals["bar"]),
            "baz": signalled("baz", output=["baz"], qux=signals["baz"]),
            "qux": last,
        },
        channels={
            **{name: LastValue(None) for name in ("foo", "bar", "baz")},
            "qux": qux,
            "output": BinaryOperatorAggregate(list, operator=operator.add),
        },
        input_channels=["foo", "bar"],
        output_channels=["output"],
        executor=signals["executor"],
    )


def test_a_node_that_is_triggered_by_any_looks_for_all_itself(
    drive: Any, executor: str
) -> None:
    """It runs twice, and writes its name when both it waits for have written theirs."""

    def look(args: dict[str, Any]) -> list[str]:
        return ["qux"] if {"bar", "baz"} <= set(args["output"]) else []

    last = NodeBuilder().subscribe_to("qux", read=False).read_from("output").do(look)
    app = join(
        LastValue(None), last.write_to("output"), bar=None, baz=None, executor=executor
    )

    assert ["bar", "foo", "baz", "qux"] == drive.invoke(
        app, {"foo": None, "bar": None}
    )["output"]


def test_a_named_barrier_waits_for_all(drive: Any, executor: str) -> None:
    """The channel knows whom it waits for, and the node runs once."""
    barrier = NamedBarrierValue(str, names={"bar", "baz"})
    last = signalled("qux", output=["qux"])
    app = join(barrier, last, bar="bar", baz="baz", executor=executor)

    assert ["bar", "foo", "baz", "qux"] == drive.invoke(
        app, {"foo": None, "bar": None}
    )["output"]
