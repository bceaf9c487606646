"""Savers as LangGraph's programs use them: subclassed, looked into, with
durability="exit".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import pytest

from tests.parity.libraries import BOTH, CONFIG, Library


class State(TypedDict, total=False):
    """A state of one number."""

    x: int


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


@pytest.fixture(params=["own", "theirs"])
def base(request: pytest.FixtureRequest, library: Library) -> Any:
    """Return the class of savers that a program extends: its library's, and
    LangGraph's.
    """
    home = library if request.param == "own" else BOTH[0]
    return home.of("checkpoint.memory.InMemorySaver")


def asking(library: Library, saver: Any) -> Any:
    """Return a graph that sets a number, and asks for another."""
    interrupt = library.of("types.interrupt")
    nodes = ("set", lambda _: {"x": 1}), ("ask", lambda _: {"x": interrupt("?")})
    return library.compile(library.graph(State, *nodes), checkpointer=saver)


def test_what_a_subclass_overrides_is_called(library: Library, base: Any) -> None:
    """`put` and `put_writes`, with LangGraph's checkpoints."""
    puts: list[Any] = []
    written: list[str] = []

    class Noting(base):
        def put(
            self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any
        ) -> Any:
            puts.append((metadata["step"], checkpoint["channel_values"].get("x")))
            return super().put(config, checkpoint, metadata, new_versions)

        def put_writes(
            self, config: Any, writes: Any, task_id: str, task_path: str = ""
        ) -> None:
            written.extend(name for name, _ in writes)
            super().put_writes(config, writes, task_id, task_path)

    app = asking(library, Noting())
    app.invoke({"x": 0}, CONFIG)
    command = library.of("types.Command")(resume=5)

    assert {"x": 5} == app.invoke(command, CONFIG, durability="sync")
    assert [(-1, None), (0, 0), (1, 1), (2, 5)] == puts
    assert {"x", "__interrupt__", "__resume__"} <= {*written}
    assert [5, 1, 0, None] == [
        each.values.get("x") for each in app.get_state_history(CONFIG)
    ]


def test_an_async_method_that_a_subclass_overrides_is_called(
    library: Library, base: Any
) -> None:
    """`aput` alone, in an async run."""
    puts: list[int] = []

    class Noting(base):
        async def aput(
            self, config: Any, checkpoint: Any, metadata: Any, versions: Any
        ) -> Any:
            puts.append(metadata["step"])
            return await super().aput(config, checkpoint, metadata, versions)

    async def story() -> Any:
        app = asking(library, Noting())
        await app.ainvoke({"x": 0}, CONFIG)
        return await app.ainvoke(library.of("types.Command")(resume=5), CONFIG)

    assert {"x": 5} == asyncio.run(story())
    assert [-1, 0, 1, 2] == puts


def test_a_saver_that_fails_fails_the_run(library: Library, base: Any) -> None:
    """What an overridden method raises is raised where the run is."""

    class Broken(base):
        def put(self, *_: Any) -> Any:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        asking(library, Broken()).invoke({"x": 0}, CONFIG, durability="sync")


@pytest.mark.parametrize(
    "method", ["get_tuple", "put", "put_writes", "get_next_version"]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_an_overridden_method_fails_the_run(
    library: Library, base: Any, method: str, is_async: bool
) -> None:
    """Whichever of them a run calls."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(f"no {method}")

    app = asking(library, type("Broken", (base,), {method: fail})())

    def run() -> None:
        if is_async:
            asyncio.run(app.ainvoke({"x": 0}, CONFIG, durability="sync"))
        else:
            app.invoke({"x": 0}, CONFIG, durability="sync")

    with pytest.raises(OSError, match=f"no {method}"):
        run()


@pytest.mark.parametrize("method", ["get_tuple", "put", "put_writes"])
def test_a_method_that_a_program_sets_on_a_saver_is_called(
    library: Library, base: Any, method: str
) -> None:
    """As test doubles do."""
    saver = base()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(f"no {method}")

    setattr(saver, method, fail)

    with pytest.raises(OSError, match=f"no {method}"):
        asking(library, saver).invoke({"x": 0}, CONFIG, durability="sync")


def test_versions_of_a_saver_are_those_of_its_method(
    library: Library, base: Any
) -> None:
    """Here they count."""

    class Counting(base):
        def get_next_version(self, current: Any, channel: Any) -> Any:
            return (current or 0) + 1

    saver = Counting()
    asking(library, saver).invoke({"x": 0}, CONFIG)

    versions = saver.get_tuple(CONFIG).checkpoint["channel_versions"]
    assert {3} == {versions["x"]} == {max(versions.values())}


@pytest.mark.parametrize("prefix", ["", "a"], ids=["sync", "async"])
def test_a_saver_may_be_derived_from_the_base_class(
    library: Library, prefix: str
) -> None:
    """With LangGraph's methods, or with their async forms alone."""
    inner = library.of("checkpoint.memory.InMemorySaver")()
    called = []

    class Own(library.of("checkpoint.base.BaseCheckpointSaver")[int]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(serde=getattr(inner, "serde", None))

    def delegate(name: str) -> Any:
        method = getattr(inner, f"{prefix}{name}")

        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            called.append(name)
            return method(*args, **keywords)

        return call

    names = ("get_tuple", "list", "put", "put_writes", "get_next_version")
    for name in names:
        alone = name if name == "get_next_version" else f"{prefix}{name}"
        if name == "get_next_version":
            setattr(Own, alone, lambda _, *args: inner.get_next_version(*args))
        else:
            setattr(Own, alone, delegate(name))
    command = library.of("types.Command")(resume=5)

    async def story() -> Any:
        app = asking(library, Own())
        await app.ainvoke({"x": 0}, CONFIG)
        result = await app.ainvoke(command, CONFIG)
        return result, [each async for each in app.aget_state_history(CONFIG)]

    if prefix:
        result, states = asyncio.run(story())
    else:
        app = asking(library, Own())
        app.invoke({"x": 0}, CONFIG)
        result = app.invoke(command, CONFIG)
        states = [*app.get_state_history(CONFIG)]

    assert {"x": 5} == result
    assert [5, 1, 0, None] == [state.values.get("x") for state in states]
    assert {"get_tuple", "list", "put", "put_writes"} <= {*called}


def test_a_saver_can_be_looked_into(library: Library) -> None:
    """By `get_tuple` and `list`, and by their async forms."""
    saver = library.of("checkpoint.memory.InMemorySaver")()
    asking(library, saver).invoke({"x": 0}, CONFIG)

    async def looked() -> Any:
        newest = await saver.aget_tuple(CONFIG)
        return newest.metadata["step"], [
            each.metadata["step"] async for each in saver.alist(CONFIG)
        ]

    newest = saver.get_tuple(CONFIG)
    assert (
        1
        == newest.checkpoint["channel_values"]["x"]
        == saver.get(CONFIG)["channel_values"]["x"]
    )
    assert ["__interrupt__"] == [name for _, name, _ in newest.pending_writes]
    assert [0] == [
        each.metadata["step"] for each in saver.list(CONFIG, before=newest.config)
    ][:1]
    assert (1, [1, 0, -1]) == asyncio.run(looked())
    saver.delete_thread("1")
    assert saver.get_tuple(CONFIG) is None


@pytest.mark.parametrize("shares", [True, False], ids=["the same saver", "none"])
def test_exit_keeps_no_checkpoint_of_a_nested_graph_that_is_over(
    library: Library, shares: bool
) -> None:
    """One that asks is kept, to go on."""
    saver = library.of("checkpoint.memory.InMemorySaver")()
    inner = asking(library, saver if shares else None)
    app = library.compile(library.graph(State, ("inner", inner)), checkpointer=saver)

    def kept() -> list[str]:
        places = (
            each.config["configurable"]["checkpoint_ns"] for each in saver.list(CONFIG)
        )
        return sorted(place.split(":")[0] for place in places)

    app.invoke({"x": 0}, CONFIG, durability="exit")
    asked = kept()
    app.invoke(library.of("types.Command")(resume=5), CONFIG, durability="exit")

    assert ["", "inner"] == asked
    assert ["", "", "inner"] == kept()


@pytest.mark.parametrize("library", BOTH[1:], ids=["flowpregel"], indirect=True)
def test_a_stream_shows_what_is_recorded_only_if_it_is_asked_for(
    library: Library,
) -> None:
    """LangGraph never does."""
    func, interrupt = library.of("func"), library.of("types.interrupt")

    @func.task(executor="inline")
    def double(number: int) -> int:
        return 2 * number

    @func.entrypoint(checkpointer=library.of("checkpoint.memory.InMemorySaver")())
    def flow(number: int) -> int:
        return double(number).result() + interrupt("how many more?")

    flow.invoke(1, CONFIG)
    answer = library.of("types.Command")(resume=5)
    items = [*flow.stream(answer, CONFIG, stream_mode=["updates", "recorded"])]

    assert [("recorded", {"double": 2}), ("updates", {"flow": 7})] == items


def test_a_saver_may_be_set_later(library: Library, base: Any) -> None:
    """On the graph itself, and on a copy of it."""
    first, second = asking(library, None), asking(library, None)

    first.checkpointer = base()
    second = second.copy({"checkpointer": base()})
    for app in (first, second):
        app.invoke({}, CONFIG)
        assert ("ask",) == app.get_state(CONFIG).next


def test_a_path_may_be_set_later(tmp_path: Path) -> None:
    """It opens the store there, as in the constructor."""
    app = asking(BOTH[1], None).copy({"checkpointer": tmp_path / "runs.lmdb"})

    app.invoke({}, CONFIG)
    assert ("ask",) == app.get_state(CONFIG).next
    app.saver.close()
