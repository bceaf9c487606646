"""Small things that programs notice: types of errors and of what is streamed,
breakpoints.
"""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from tests.parity.libraries import BOTH, CONFIG, Library


class State(TypedDict, total=False):
    """A state of one text."""

    text: str


@pytest.fixture(params=BOTH, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Any:
    """Return LangGraph, then flowpregel."""
    return request.param


def note(state: State) -> State:
    """Add a mark."""
    return {"text": state["text"] + "|note"}


def compiled(library: Library, **options: Any) -> Any:
    """Return a graph of one node."""
    return library.compile(library.graph(State, note), **options)


def generate() -> Any:
    """No entrypoint can be a generator."""
    yield 1


@pytest.mark.parametrize(
    ("error", "attempt"),
    [
        (ValueError, lambda lib: compiled(lib).invoke({"text": ""})),
        (KeyError, lambda lib: compiled(lib).get_state({})),
        (KeyError, lambda lib: compiled(lib).update_state({}, {"text": ""})),
        (
            RuntimeError,
            lambda lib: compiled(lib, checkpointer=True).invoke({"text": ""}),
        ),
        (NotImplementedError, lambda lib: lib.of("func.entrypoint")()(generate)),
        (
            TypeError,
            lambda lib: lib.of("store.memory.InMemoryStore")().put(("a",), "b", 5),
        ),
        (
            RuntimeError,
            lambda lib: compiled(lib, checkpointer=None).invoke(
                lib.of("types.Command")(resume=1), CONFIG
            ),
        ),
    ],
)
def test_wrong_use_raises_what_programs_catch(
    library: Library, error: Any, attempt: Any
) -> None:
    """The message may be another one; the type is one that a program already
    handles.
    """
    with pytest.raises(error):
        attempt(library)


def test_an_answer_at_a_breakpoint_goes_on(library: Library) -> None:
    """Nothing asked, so nobody gets it."""
    app, command = (
        compiled(library, interrupt_before=["note"]),
        library.of("types.Command"),
    )

    app.invoke({"text": "a"}, CONFIG)

    assert {"text": "a|note"} == app.invoke(command(resume=True), CONFIG)


def test_one_answer_to_two_questions_is_an_error_that_programs_catch(
    library: Library,
) -> None:
    """It says whose it is, or is a RuntimeError."""
    interrupt = library.of("types.interrupt")
    builder = library.graph(State, ("one", lambda _: {"text": interrupt("?")}))
    builder.add_node("two", lambda _: {"text": interrupt("?")}).add_edge(
        "__start__", "two"
    )
    app = library.compile(builder)
    app.invoke({"text": "a"}, CONFIG)

    with pytest.raises(RuntimeError):
        app.invoke(library.of("types.Command")(resume=1), CONFIG)


def test_a_command_is_shown_by_what_it_says(library: Library) -> None:
    """What is left out is not shown."""
    types = library.of("types")
    command = types.Command(update={"a": 1}, goto=["b", types.Send("c", 2)])

    assert "Command()" == repr(types.Command())
    assert "Command(update={'a': 1}, goto=['b', Send(node='c', arg=2)])" == repr(
        command
    )


def test_events_of_tasks_have_tuples_where_they_have_them(library: Library) -> None:
    """Triggers, and the questions of a checkpoint's tasks, are tuples; a result's are a
    list.
    """
    interrupt = library.of("types.interrupt")
    app = library.compile(
        library.graph(State, ("ask", lambda _: {"text": interrupt("?")}))
    )

    items = [*app.stream({"text": "a"}, CONFIG, stream_mode=["tasks", "checkpoints"])]
    started, ended = (payload for mode, payload in items if mode == "tasks")
    (task,) = app.get_state(CONFIG).tasks
    resumed = next(iter(app.stream(None, CONFIG, stream_mode="checkpoints")))["tasks"][
        0
    ]

    assert ("branch:to:ask",) == started["triggers"]
    assert ["?"] == [each["value"] for each in ended["interrupts"]]
    assert isinstance(ended["interrupts"], list)
    assert [each.value for each in task.interrupts] == [
        each["value"] for each in resumed["interrupts"]
    ]
    assert isinstance(resumed["interrupts"], tuple)


def test_the_outermost_graph_has_no_parents(library: Library) -> None:
    """Its metadata say so, everywhere."""
    app = compiled(library)

    events = [*app.stream({"text": "a"}, CONFIG, stream_mode="checkpoints")]

    assert [{}] * 3 == [each["metadata"]["parents"] for each in events]
    assert [{}] * 3 == [
        each.metadata["parents"] for each in app.get_state_history(CONFIG)
    ]


def test_a_question_is_streamed_before_the_end_of_the_task_that_asks(
    library: Library,
) -> None:
    """The order of modes is that of what happened."""
    interrupt = library.of("types.interrupt")
    app = library.compile(
        library.graph(State, ("ask", lambda _: {"text": interrupt("?")}))
    )

    items = app.stream(
        {"text": "a"}, CONFIG, stream_mode=["tasks", "updates", "values"]
    )

    assert ["values", "tasks", "updates", "values", "tasks"] == [
        mode for mode, _ in items
    ]


def test_tasks_in_a_stream_have_the_metadata_and_tags_of_their_run(
    library: Library,
) -> None:
    """A nested graph has those of its node too."""
    inner = compiled(library, checkpointer=None)
    inner = inner.with_config(metadata={"topic": "inner"}, tags=["nested"])
    builder = library.of("graph.StateGraph")(State)
    builder.add_node("outer", inner, metadata={"own": 1})
    app = library.compile(builder.add_edge("__start__", "outer"), checkpointer=None)
    config = {"metadata": {"topic": "run", "user": "Ada"}, "tags": ["mine"]}

    items = app.stream({"text": "a"}, config, stream_mode="tasks", subgraphs=True)
    labels = {}
    for _, item in items:
        if "triggers" in item:
            metadata = {**item["metadata"]}
            metadata.pop("ls_integration", None)  # It names the library.
            labels[item["name"]] = {**metadata, "tags": sorted(metadata["tags"])}

    outer = {"topic": "run", "user": "Ada", "own": 1, "tags": ["mine"]}
    assert outer == labels["outer"]
    assert {**outer, "tags": ["mine", "nested"]} == labels["note"]
