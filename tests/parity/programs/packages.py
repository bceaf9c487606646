"""What other packages on top of LangGraph do, a program for each.

``python -m tests.parity.programs.packages NAME`` runs one of them.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from pydantic import BaseModel, field_validator

from tests.parity.langchain import ScriptedModel, asks, call, shown
from tests.parity.programs import print_line

warnings.simplefilter("ignore")  # LangGraph's own agent is deprecated

HELLO = {"messages": [("user", "Hello")]}


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool
def half(number: int) -> int:
    """Halve a number."""
    return number // 2


def of_messages(output: Any) -> Any:
    """Return the messages of a state, shown."""
    return shown(output["messages"])


def langgraph_bigtool() -> Any:
    """An agent that looks its tools up in a store."""
    from langgraph.store.memory import InMemoryStore
    from langgraph_bigtool import create_agent

    registry = {"1": double, "2": half}
    store = InMemoryStore()
    for key, each in registry.items():
        store.put(("tools",), key, {"description": each.description})
    model = ScriptedModel(
        script=[
            asks(call("find", "f1", query="Double")),
            AIMessage("I have found a tool."),
        ]
    )

    def find(query: str) -> list[str]:
        """Return the ids of tools whose description has a word."""
        return [key for key, each in registry.items() if query in each.description]

    builder = create_agent(model, registry, retrieve_tools_function=find)
    output = builder.compile(store=store).invoke(HELLO)
    return [of_messages(output), output["selected_tool_ids"]]


def langgraph_codeact() -> Any:
    """An agent that writes code, which a function of ours runs."""
    from langgraph.checkpoint.memory import MemorySaver
    from langgraph_codeact import create_codeact

    code = "```python\nx = double(4)\nprint(x)\n```"
    model = ScriptedModel(script=[AIMessage(code), AIMessage("It is 8.")])

    def run(script: str, variables: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"ran {script.split()[2]} {'double' in variables}", {"x": 8}

    app = create_codeact(model, [double], run, prompt="Write code.").compile(
        checkpointer=MemorySaver()
    )
    config = {"configurable": {"thread_id": "1"}}
    output = app.invoke(HELLO, config)
    return [of_messages(output), output["context"], app.get_state(config).next]


def langgraph_reflection() -> Any:
    """A graph and its critic, which is content with the second answer."""
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph_reflection import create_reflection_graph

    def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    def judge(state: MessagesState) -> Any:
        if len(state["messages"]) < 4:
            return {"messages": [("user", "again")]}
        return {}

    graphs = []
    for node in (answer, judge):
        builder = StateGraph(MessagesState).add_node("node", node)
        graphs.append(builder.add_edge(START, "node").add_edge("node", END).compile())
    app = create_reflection_graph(*graphs, state_schema=MessagesState).compile()
    return of_messages(app.invoke(HELLO))


class Even(BaseModel):
    """An even number."""

    number: int

    @field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        """Refuse an odd number."""
        if number % 2:
            raise ValueError("odd")
        return number


class Extracting(ScriptedModel):
    """A model whose calls with a chosen tool are scripted too."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model itself."""
        return self


def trustcall() -> Any:
    """An extractor, whose model corrects its first answer by a patch."""
    from trustcall import create_extractor

    patch = call(
        "PatchFunctionErrors",
        "p1",
        json_doc_id="e1",
        planned_edits="make it even",
        patches=[{"op": "replace", "path": "/number", "value": 4}],
    )
    outcomes = []
    for script in (
        [asks(call("Even", "e1", number=2))],
        [
            asks(call("Even", "e1", number=3)),
            asks(patch),
        ],
    ):
        extractor = create_extractor(
            Extracting(script=script), tools=[Even], tool_choice="Even"
        )
        output = extractor.invoke(HELLO)
        outcomes.append([shown(output["messages"]), str(output["responses"])])
    return outcomes


def langmem() -> Any:
    """An agent with tools that manage memories in the store of its graph."""
    from langgraph.prebuilt import create_react_agent
    from langgraph.store.memory import InMemoryStore
    from langmem import create_manage_memory_tool, create_search_memory_tool

    store = InMemoryStore()
    model = ScriptedModel(
        script=[
            asks(call("manage_memory", "m1", content="Ada likes tea.")),
            AIMessage("I will remember that."),
        ]
    )
    namespace = ("memories", "{user}")
    tools = [
        create_manage_memory_tool(namespace=namespace),
        create_search_memory_tool(namespace=namespace),
    ]
    app = create_react_agent(model, tools, store=store)
    output = app.invoke(HELLO, {"configurable": {"user": "ada"}})
    items = store.search(("memories", "ada"))
    texts = [str(message.content).split()[:1] for message in output["messages"]]
    return [texts, [item.value for item in items], shown(output["messages"][-1])]


def langmem_summary() -> Any:
    """A node that summarizes old messages."""
    from langchain_core.messages.utils import count_tokens_approximately
    from langgraph.graph import START, MessagesState, StateGraph
    from langmem.short_term import SummarizationNode

    class State(MessagesState):
        context: dict[str, Any]
        summarized: list[Any]

    node = SummarizationNode(
        token_counter=count_tokens_approximately,
        model=ScriptedModel(script=[], last="Summary"),
        max_tokens=60,
        max_tokens_before_summary=40,
        max_summary_tokens=20,
        output_messages_key="summarized",
    )
    builder = StateGraph(State).add_node("summarize", node)
    app = builder.add_edge(START, "summarize").compile()
    messages = [("user" if n % 2 else "ai", f"word {n} " * 6) for n in range(1, 8)]
    output = app.invoke({"messages": messages, "context": {}})
    return [len(output["messages"]), shown(output["summarized"])]


def langchain() -> Any:
    """An agent of LangChain's, with middleware before its model."""
    from langchain.agents import AgentState, create_agent
    from langchain.agents.middleware import before_model

    class State(AgentState):
        lengths: Annotated[list[int], operator.add]

    @before_model(state_schema=State)
    def count(state: Any, runtime: Any) -> Any:
        return {"lengths": [len(state["messages"])]}

    model = ScriptedModel(script=[asks(call("double", "d1", number=4))])
    app = create_agent(model, [double], middleware=[count], system_prompt="Help.")
    output = app.invoke(HELLO)
    return [of_messages(output), output["lengths"]]


def deepagents() -> Any:
    """An agent that uses a tool, and asks another agent."""
    from deepagents import create_deep_agent

    helper = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "Help.",
        "model": ScriptedModel(script=[AIMessage("I have helped.")]),
        "tools": [half],
    }
    model = ScriptedModel(
        script=[
            asks(call("double", "d1", number=4)),
            asks(call("task", "t1", description="Help me", subagent_type="helper")),
            AIMessage("Done."),
        ]
    )
    app = create_deep_agent(model=model, tools=[double], subagents=[helper])
    return of_messages(app.invoke(HELLO))


GIVEN_FILE = {
    "content": "given",
    "encoding": "utf-8",
    "created_at": "2020-01-01",
    "modified_at": "2020-01-01",
}


def file_script(*, ends: str) -> list[Any]:
    """Return the answers of a model that uses each tool for files."""
    return [
        asks(call("write_file", "w1", file_path="/a.txt", content="one\ntwo")),
        asks(
            call(
                "edit_file",
                "e1",
                file_path="/a.txt",
                old_string="two",
                new_string="three",
            )
        ),
        asks(call("write_file", "w2", file_path="/d/b.txt", content="bee")),
        asks(
            call("read_file", "r1", file_path="/a.txt"),
            call("ls", "l1", path="/"),
            call("glob", "g1", pattern="d/*.txt"),
            call("grep", "p1", pattern="three"),
        ),
        asks(call("task", "t1", description="Help me", subagent_type="helper")),
        asks(call("delete", "x1", file_path="/d")),
        AIMessage(ends),
    ]


def texts_of(files: Any) -> dict[str, str]:
    """Return the texts of files, by their paths."""
    return {path: file["content"] for path, file in sorted(files.items())}


def deepagents_files() -> Any:
    """Agents whose files are in the state of the graph, for two runs of a thread."""
    from deepagents import create_deep_agent
    from langgraph.checkpoint.memory import MemorySaver

    helper = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "Help.",
        "model": ScriptedModel(
            script=[
                asks(call("read_file", "h1", file_path="/a.txt")),
                asks(call("write_file", "h2", file_path="/h.txt", content="helped")),
                AIMessage("I have helped."),
            ]
        ),
        "tools": [],
    }
    again = [asks(call("read_file", "r9", file_path="/h.txt")), AIMessage("Again.")]
    app = create_deep_agent(
        model=ScriptedModel(script=[*file_script(ends="Done."), *again]),
        tools=[],
        subagents=[helper],
        checkpointer=MemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    first = app.invoke({**HELLO, "files": {"/c.txt": GIVEN_FILE}}, config)
    updates = [
        sorted(update or ())
        for item in app.stream(HELLO, config, stream_mode="updates")
        for update in item.values()
        if isinstance(update, dict)
    ]
    state = app.get_state(config).values
    return [
        of_messages(first),
        texts_of(first["files"]),
        updates,
        of_messages(state),
        texts_of(state["files"]),
    ]


def deepagents_questions() -> Any:
    """A person approves a file that the agent wants to write."""
    from deepagents import create_deep_agent
    from langgraph.checkpoint.memory import MemorySaver
    from langgraph.types import Command

    write = call("write_file", "w1", file_path="/a.txt", content="one")
    app = create_deep_agent(
        model=ScriptedModel(script=[asks(write), AIMessage("Done.")]),
        tools=[],
        interrupt_on={"write_file": True},
        checkpointer=MemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    waiting = app.invoke(HELLO, config)
    questions = [question.value for question in waiting["__interrupt__"]]
    before = texts_of(app.get_state(config).values.get("files", {}))
    decision = {"decisions": [{"type": "approve"}]}
    done = app.invoke(Command(resume=decision), config)
    return [questions, before, of_messages(done), texts_of(done["files"])]


PROGRAMS: dict[str, Callable[[], Any]] = {
    program.__name__: program
    for program in (
        deepagents,
        deepagents_files,
        deepagents_questions,
        langchain,
        langgraph_bigtool,
        langgraph_codeact,
        langgraph_reflection,
        langmem,
        langmem_summary,
        trustcall,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        print_line([name, PROGRAMS[name]()])
