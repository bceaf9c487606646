"""Agents on both engines: the same messages, questions and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.plugins.langchain import create_react_agent
from tests.parity.chat_agents import (
    HELLO,
    agents,
    build,
    choose_later,
    graphs,
    speak_later,
)
from tests.parity.langchain import (
    ChatSide,
    ScriptedModel,
    drive,
    flowpregel,
    langgraph,
    outcome,
    shown,
    talk,
)

# LangChain has an agent of its own by now, and LangGraph says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has been moved to `langchain.agents`"),
    # Its `ToolRuntime` has no context unless its annotation names one.
    pytest.mark.filterwarnings(
        "ignore:(?s)Pydantic serializer warnings.*field_name='context'"
    ),
]

AGENTS = {name: (options, asked) for name, options, asked in agents()}


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> str:
    """How an agent calls its tools: all in one task, or each in its own."""
    return str(request.param)


# Each agent in both versions, and driven both ways; each version is driven both ways by
# others.
@pytest.mark.parametrize(
    ("name", "version", "is_async"),
    [
        # LangGraph has the hook in one version.
        (
            name,
            "v2" if "post_model_hook" in options else version,
            (number + index) % 2 == 1,
        )
        for number, (name, (options, _)) in enumerate(AGENTS.items())
        for index, version in enumerate(["v1", "v2"])
    ],
)
def test_an_agent_says_what_langgraphs_says(
    name: str, version: str, is_async: bool
) -> None:
    """Whatever it was made of; its model is asked the same, and so is its user."""
    options, asked = AGENTS[name]
    said = []
    for side in (langgraph(), flowpregel()):
        app = build(side, options, version=version, checkpointer=side.saver())
        said.append(outcome(lambda: talk(side, app, HELLO, is_async, **asked)))  # noqa: B023

    assert said[0] == said[1]


@pytest.mark.parametrize("options", [{"prompt": speak_later}, {"model": choose_later}])
def test_async_parts_of_an_agent_are_awaited(options: dict[str, Any]) -> None:
    """A prompt, and the choice of a model."""
    said = []
    for side in (langgraph(), flowpregel()):
        app = build(side, options, checkpointer=side.saver())
        said.append(talk(side, app, HELLO, is_async=True))

    assert said[0] == said[1]


# Of tools that ask in one task, LangGraph gives either the other's answer now and then.
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "name", [name for name in graphs() if name != "asking, one task"]
)
def test_a_graph_of_tools_and_agents_does_what_langgraphs_does(
    name: str, is_async: bool
) -> None:
    """Agents that hand over to each other, a loop by hand, tools that ask side by
    side.
    """
    make, given = graphs()[name]
    said = [
        talk(side, make(side, side.saver()), given, is_async)
        for side in (langgraph(), flowpregel())
    ]

    assert said[0] == said[1]


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_that_ask_in_one_task_ask_one_after_the_other(is_async: bool) -> None:
    """In the order of their calls, and each gets its own answer."""
    make, given = graphs()["asking, one task"]
    side = flowpregel()

    *waiting, (last, _) = talk(side, make(side, side.saver()), given, is_async)

    assert [["one?"], ["two?"]] * 2 == [questions for _, questions in waiting]
    answers = [said for kind, _, said, *_ in last["messages"] if kind == "ToolMessage"]
    assert ["one? ONE?", "two? TWO?", "2"] * 2 == answers


@pytest.mark.parametrize("mode", ["updates", "values", "custom"])
def test_an_agent_streams_what_langgraphs_streams(mode: str, version: str) -> None:
    """Updates, values and what tools write to the stream."""
    streams = []
    for side in (langgraph(), flowpregel()):
        app = build(
            side, AGENTS["mixed"][0], version=version, checkpointer=side.saver()
        )
        config = {"configurable": {"thread_id": "1"}}
        items = [
            shown(item) for item in app.stream(HELLO, config, stream_mode=mode) if item
        ]
        # Tools that run side by side end in any order.
        streams.append(sorted(items, key=repr) if mode == "updates" else items)

    assert streams[0] == streams[1]


def test_an_agent_stops_at_its_nodes_as_langgraphs() -> None:
    """Before its tools, and goes on without new input."""
    states = []
    for side in (langgraph(), flowpregel()):
        options = {"interrupt_before": ["tools"], "checkpointer": side.saver()}
        app = build(side, AGENTS["mixed"][0], version="v1", **options)
        config = {"configurable": {"thread_id": "1"}}
        first = drive(app, HELLO, False, config=config)
        waiting = app.get_state(config).next
        states.append(
            [shown(first), waiting, shown(drive(app, None, False, config=config))]
        )

    assert states[0] == states[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", *graphs()])
def test_an_agent_runs_in_worker_processes_as_inline(name: str, tmp_path: Path) -> None:
    """Its threads on disk: tools, models and messages travel, and are kept."""

    def make(side: ChatSide, saver: Any) -> Any:
        if name == "mixed":
            return build(side, AGENTS["mixed"][0], checkpointer=saver)
        return graphs()[name][0](side, saver)

    given = HELLO if name == "mixed" else graphs()[name][1]
    inline, apart = (
        flowpregel(),
        flowpregel("processes", str(tmp_path / "threads.lmdb")),
    )
    with apart.saver() as saver:
        said = talk(apart, make(apart, saver), given)

    assert talk(inline, make(inline, inline.saver()), given) == said


def test_options_that_cannot_be_are_refused() -> None:
    """With what to use instead."""
    with pytest.raises(ConfigurationError, match="use 'v1' or 'v2'"):
        create_react_agent(ScriptedModel(script=[]), [], version="v3")


def test_a_history_that_models_refuse_is_refused() -> None:
    """A call of a tool that was never answered."""
    said = []
    for side in (langgraph(), flowpregel()):
        app = build(side, {})
        given = {
            "messages": [*AGENTS["direct"][0]["model"].script[:1], ("user", "and?")],
            "topic": "",
        }
        said.append(outcome(lambda: drive(app, given, False)))  # noqa: B023

    assert ["ValueError", "ValueError"] == said
