"""A `Context` whose context manager is async: entered and left on the event loop of the
run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowpregel.channels import Context, LastValue
from flowpregel.errors import ConfigurationError
from flowpregel.pregel import NodeBuilder, Pregel


class Client:
    """What the nodes share, and what became of it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        """Open the client on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.seen.append("opened")
        await asyncio.sleep(0)
        try:
            yield self
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            self.seen.append(asyncio.get_running_loop() is self.loop)


def graph(client: Client, *functions: Any, **options: Any) -> Pregel:
    """Return *functions* as nodes that run side by side, and are given the client."""
    names = [f"out{index}" for index, _ in enumerate(functions)]
    nodes = {
        name: NodeBuilder()
        .subscribe_to("given")
        .read_from("client")
        .do(function)
        .write_to(name)
        for name, function in zip(names, functions, strict=True)
    }
    channels = {name: LastValue(Any) for name in ("given", *names)}
    channels["client"] = Context(client.opened)
    return Pregel(
        nodes=nodes,
        channels=channels,
        input_channels="given",
        output_channels=names,
        **options,
    )


async def use(state: dict[str, Any]) -> bool:
    """Return whether the client belongs to the loop that the node runs on."""
    return state["client"].loop is asyncio.get_running_loop()


async def fail(state: dict[str, Any]) -> None:
    """Fail while the client is open."""
    raise OSError("no")


def test_async_nodes_share_one_context_on_the_loop_of_the_run() -> None:
    """It is left when the run ends."""
    client = Client()

    found = asyncio.run(graph(client, use, use).ainvoke(1))

    assert {"out0": True, "out1": True} == found
    assert ["opened", True] == client.seen


def test_a_run_that_fails_leaves_it_with_the_error() -> None:
    """As a ``with`` block would."""
    client = Client()

    with pytest.raises(OSError, match="no"):
        asyncio.run(graph(client, fail).ainvoke(1))

    assert ["opened", "OSError", True] == client.seen


def test_a_run_that_is_cancelled_leaves_it_on_its_loop() -> None:
    """Nothing waits for the loop that it holds."""
    client = Client()

    async def story() -> None:
        entered = asyncio.Event()

        async def wait(_: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(graph(client, wait).ainvoke(1))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(story(), 30))

    assert ["opened", "TaskCancelled", True] == client.seen


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_node_that_cannot_await_is_told_why(executor: str) -> None:
    """In a sync run, and as a sync node of an async one."""
    app = graph(Client(), lambda state: state, executor=executor)

    with pytest.raises(ConfigurationError, match="only async nodes of an async run"):
        app.invoke(1)
    with pytest.raises(ConfigurationError, match="only async nodes of an async run"):
        asyncio.run(app.ainvoke(1))
