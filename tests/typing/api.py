"""The public types as mypy sees them; read by the type checker, never run."""

from __future__ import annotations

from typing import Any, assert_type

from flowpregel import Shared, shared
from flowpregel.channels import BinaryOperatorAggregate, LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.pregel import Channel, ChannelWrite, NodeBuilder, Pregel, PregelNode
from flowpregel.pregel.snapshot import StateSnapshot


def double(value: str) -> str:
    """Return *value* twice."""
    return value + value


assert_type(Channel.subscribe_to("a") | double | Channel.write_to("b"), PregelNode)
assert_type(Channel.write_to("b"), ChannelWrite)
assert_type(
    NodeBuilder().subscribe_only("a").do(double).write_to("b").build(), PregelNode
)

app = Pregel(
    nodes={"n": NodeBuilder().subscribe_only("a").do(double).write_to("b")},
    channels={
        "a": LastValue(str),
        "b": BinaryOperatorAggregate(str, lambda a, b: a + b),
    },
    input_channels="a",
    output_channels=["b"],
    checkpointer=InMemorySaver(),
)
assert_type(app.with_config(tags=["x"]), Pregel)
assert_type(app.get_state(thread_id="1"), StateSnapshot)
assert_type(app.update_state({"configurable": {"thread_id": "1"}}, "x"), dict[str, Any])
app.invoke("a", thread_id="1", durability="sync")
app.invoke("a", thread_id=1)  # type: ignore[arg-type]
app.invoke("a", durability="now")  # type: ignore[arg-type]
app.invoke("a", treads="1")  # type: ignore[call-arg]

assert_type(shared([1]), Shared[list[int]])
assert_type(shared([1]).value, list[int])
