"""Programs around `langchain.agents.create_agent`, for either engine.

A program imports `langgraph`, and nothing of flowpregel. Which engine that gives is
decided before this module is imported: see `tests.parity.run_agents`.
"""

# No annotations from the future: LangChain reads those of the tools and middleware.
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRequest,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolCallRequest,
    ToolRetryMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from tests.parity.agent_tools import (
    BrokenModel,
    Shop,
    Weather,
    add,
    ask,
    describe,
    fail,
    fill,
    final,
    look,
    model,
    note,
)
from tests.parity.langchain import asks, call
from tests.parity.nested_agents import events_of_nested_agents

HELLO = {"messages": [HumanMessage("hi", id="hi")]}
LAST = AIMessage("So it is.", id="last")


# ---------------------------------------------------------------- plain agents


def tools(run: Any) -> Any:
    """Call tools side by side, with wrong arguments, and one that does not exist."""
    agent = create_agent(
        model(
            asks(call("add", "1", a=1, b=2), call("describe", "2", word="w")),
            asks(call("add", "3", a="x", b=2), call("nothing", "4")),
            LAST,
        ),
        [add, describe],
        system_prompt="Be good.",
        name="ann",
    )
    return run.invoke(agent, HELLO)


def no_tools(run: Any) -> Any:
    """Answer."""
    return run.invoke(create_agent(model(), system_prompt="Be good."), HELLO)


def failing_tool(run: Any) -> Any:
    """Fail with the tool's error."""
    return run.invoke(
        create_agent(model(asks(call("fail", "1", kind="k"))), [fail]), HELLO
    )


def direct_answer(run: Any) -> Any:
    """End with the answer of a tool."""
    agent = create_agent(model(asks(call("final", "1", text="a"))), [final])
    return run.invoke(agent, HELLO)


def own_state(run: Any) -> Any:
    """Read and write a key of the state in tools."""
    agent = create_agent(
        model(
            asks(call("look", "1", word="a")),
            asks(call("fill", "2", item="tea")),
            asks(call("look", "3", word="b")),
            LAST,
        ),
        [look, fill],
        state_schema=Shop,
    )
    return run.invoke(agent, {**HELLO, "basket": "empty"})


def store(run: Any) -> Any:
    """Use the long-term store in a tool, and a thread for two runs."""
    agent = create_agent(
        model(
            asks(call("note", "1", word="one")),
            LAST,
            asks(call("note", "2", word="two")),
        ),
        [note],
        store=InMemoryStore(),
        checkpointer=InMemorySaver(),
    )
    return [run.invoke(agent, HELLO, "1"), run.invoke(agent, HELLO, "1")]


def structured(run: Any) -> Any:
    """Answer in a form, after wrong arguments."""
    agent = create_agent(
        model(
            asks(call("add", "1", a=1, b=2)),
            asks(call("Weather", "2", place="Rome", degrees="hot")),
            asks(call("Weather", "3", place="Rome", degrees=30)),
        ),
        [add],
        response_format=ToolStrategy(Weather),
    )
    return run.invoke(agent, HELLO)


def structured_twice(run: Any) -> Any:
    """Answer in a form without tools, once the model has answered only once."""
    twice = asks(
        call("Weather", "1", place="Rome", degrees=1),
        call("Weather", "2", place="Oslo", degrees=2),
    )
    once = asks(call("Weather", "3", place="Oslo", degrees=2))
    return run.invoke(
        create_agent(model(twice, once), response_format=ToolStrategy(Weather)), HELLO
    )


# ---------------------------------------------------------------- middleware


class Diary(AgentMiddleware[Shop, Any]):
    """Writes down each hook that is called."""

    state_schema = Shop

    def _line(self, hook: str, state: Any) -> dict[str, Any]:
        return {"basket": f"{state.get('basket', '')} {hook}"}

    def before_agent(self, state: Any, runtime: Any) -> Any:
        """Write a line."""
        return self._line("before_agent", state)

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Write a line."""
        return self._line("before_model", state)

    def after_model(self, state: Any, runtime: Any) -> Any:
        """Write a line."""
        return self._line("after_model", state)

    def after_agent(self, state: Any, runtime: Any) -> Any:
        """Write a line."""
        return self._line("after_agent", state)

    def wrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Add a message to the model's input."""
        return handler(
            request.override(messages=[*request.messages, HumanMessage("think")])
        )

    async def awrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Add a message to the model's input."""
        return await handler(
            request.override(messages=[*request.messages, HumanMessage("think")])
        )

    def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Change the arguments, and the answer."""
        answer = handler(self._doubled(request))
        answer.content = f"{answer.content} with {request.state['basket'][:7]}"
        return answer

    async def awrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Change the arguments, and the answer."""
        answer = await handler(self._doubled(request))
        answer.content = f"{answer.content} with {request.state['basket'][:7]}"
        return answer

    def _doubled(self, request: ToolCallRequest) -> ToolCallRequest:
        arguments = {
            name: 2 * value for name, value in request.tool_call["args"].items()
        }
        return request.override(tool_call={**request.tool_call, "args": arguments})


def hooks(run: Any) -> Any:
    """Run all hooks of a middleware."""
    agent = create_agent(
        model(
            asks(call("add", "1", a=1, b=2), call("add", "2", a=3, b=4)), last="mine"
        ),
        [add],
        middleware=[Diary()],
    )
    return run.invoke(agent, {**HELLO, "basket": ""})


@before_agent
def greet(state: Any, runtime: Any) -> Any:
    """Greet."""
    return {"messages": [HumanMessage("greetings", id="greet")]}


@before_model(can_jump_to=["end"])
def stop_at_five(state: Any, runtime: Any) -> Any:
    """End the run when there are five messages."""
    if len(state["messages"]) >= 5:
        return {"jump_to": "end", "messages": [AIMessage("enough", id="enough")]}
    return None


@after_model
def sign(state: Any, runtime: Any) -> Any:
    """Sign the model's answer."""
    last = state["messages"][-1]
    return {"messages": [last.model_copy(update={"name": "signed"})]}


@after_agent
def say_goodbye(state: Any, runtime: Any) -> Any:
    """Say goodbye."""
    return {"messages": [AIMessage("goodbye", id="goodbye")]}


def hook_functions(run: Any) -> Any:
    """Run hooks that are functions, one of which ends the run."""
    agent = create_agent(
        model(asks(call("add", "1", a=1, b=2)), asks(call("add", "2", a=1, b=2))),
        [add],
        middleware=[greet, stop_at_five, sign, say_goodbye],
    )
    return run.invoke(agent, HELLO)


@dynamic_prompt
def name_user(request: ModelRequest) -> str:
    """Make the prompt of the state and the context."""
    return f"The user is {request.runtime.context}, {len(request.state['messages'])}"


def prompts(run: Any) -> Any:
    """Make the prompt at each call."""
    agent = create_agent(model(), [add], middleware=[name_user])
    return run.invoke(agent, HELLO, context="ann")


@tool
def secret(a: int) -> str:
    """Answer, although the agent was made without this tool."""
    return f"secret {a}"


class ExtraTools(AgentMiddleware):
    """Offers a tool to the model that the agent does not have."""

    def wrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Add the tool."""
        return handler(request.override(tools=[*request.tools, secret]))

    async def awrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Add the tool."""
        return await handler(request.override(tools=[*request.tools, secret]))

    def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Call the tool."""
        return handler(self._with_tool(request))

    async def awrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Call the tool."""
        return await handler(self._with_tool(request))

    def _with_tool(self, request: Any) -> Any:
        return request.override(tool=secret) if request.tool is None else request


def extra_tools(run: Any) -> Any:
    """Call a tool that only middleware knows."""
    agent = create_agent(
        model(asks(call("secret", "1", a=5), call("add", "2", a=1, b=1)), LAST),
        [add],
        middleware=[ExtraTools()],
    )
    return run.invoke(agent, HELLO)


class Catch(AgentMiddleware):
    """Answers errors of tools and models."""

    def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Answer a tool's error."""
        try:
            return handler(request)
        except ValueError as error:
            return self._answer(request, error)

    async def awrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Answer a tool's error."""
        try:
            return await handler(request)
        except ValueError as error:
            return self._answer(request, error)

    def _answer(self, request: Any, error: Exception) -> ToolMessage:
        return ToolMessage(f"caught {error}", tool_call_id=request.tool_call["id"])


def caught_errors(run: Any) -> Any:
    """Answer errors of tools in a wrapper."""
    agent = create_agent(
        model(asks(call("fail", "1", kind="k")), LAST), [fail], middleware=[Catch()]
    )
    return run.invoke(agent, HELLO)


def retried_tool(run: Any) -> Any:
    """Try a tool again until the middleware gives up."""
    again = ToolRetryMiddleware(
        max_retries=2, initial_delay=0.0, jitter=False, on_failure="continue"
    )
    agent = create_agent(
        model(asks(call("fail", "1", kind="k")), LAST), [fail], middleware=[again]
    )
    return run.invoke(agent, HELLO)


def fallback(run: Any) -> Any:
    """Ask another model if the first one fails."""
    agent = create_agent(
        BrokenModel(script=[]),
        [add],
        middleware=[
            ModelFallbackMiddleware(model(asks(call("add", "1", a=1, b=2)), LAST)),
            ModelRetryMiddleware(
                max_retries=1, initial_delay=0.0, jitter=False, on_failure="error"
            ),
        ],
    )
    return run.invoke(agent, HELLO)


def limits(run: Any) -> Any:
    """End a run that asks too often, and refuse calls of a tool."""
    again = [asks(call("add", str(number), a=1, b=number)) for number in range(9)]
    return [
        run.invoke(create_agent(model(*again), [add], middleware=[limit]), HELLO)
        for limit in (
            ModelCallLimitMiddleware(run_limit=3, exit_behavior="end"),
            ToolCallLimitMiddleware(run_limit=2, exit_behavior="end"),
        )
    ]


def strict_limit(run: Any) -> Any:
    """Fail with the error of the limit, which cannot be pickled."""
    strict = ToolCallLimitMiddleware(run_limit=1, exit_behavior="error")
    script = [asks(call("add", str(number), a=1, b=number)) for number in range(3)]
    agent = create_agent(model(*script), [add], middleware=[strict])
    return run.invoke(agent, HELLO)


def redaction(run: Any) -> Any:
    """Hide addresses from the model."""
    agent = create_agent(model(), [add], middleware=[PIIMiddleware("email")])
    given = {"messages": [HumanMessage("I am ann@example.com", id="mail")]}
    return run.invoke(agent, given)


def summary(run: Any) -> Any:
    """Replace old messages by a summary."""
    agent = create_agent(
        model(),
        [add],
        middleware=[
            SummarizationMiddleware(
                model=model(last="summed up"),
                trigger=("messages", 4),
                keep=("messages", 2),
            )
        ],
    )
    said = [HumanMessage(f"message {number}", id=str(number)) for number in range(6)]
    return [
        message.type for message in run.values(agent, {"messages": said})["messages"]
    ]


def todos(run: Any) -> Any:
    """Keep a list of tasks in the state."""
    work = [{"content": "add", "status": "in_progress"}]
    agent = create_agent(
        model(asks(call("write_todos", "1", todos=work)), LAST),
        [add],
        middleware=[TodoListMiddleware()],
    )
    return run.invoke(agent, HELLO)


@wrap_model_call
def answer_itself(request: Any, handler: Any) -> Any:
    """Answer without the model."""
    return AIMessage("not asked", id="short")


@wrap_tool_call
def refuse(request: Any, handler: Any) -> Any:
    """Answer without the tool."""
    return ToolMessage("refused", tool_call_id=request.tool_call["id"])


def sync_wrappers(run: Any) -> Any:
    """Wrap by sync functions; an async run refuses them."""
    return [
        run.invoke(create_agent(model(), [add], middleware=[answer_itself]), HELLO),
        run.invoke(
            create_agent(
                model(asks(call("add", "1", a=1, b=2)), LAST),
                [add],
                middleware=[refuse],
            ),
            HELLO,
        ),
    ]


# ---------------------------------------------------------------- questions


def question_of_a_tool(run: Any) -> Any:
    """Ask in a tool, beside another one, and go on with the answer."""
    agent = create_agent(
        model(
            asks(call("ask", "1", question="one?"), call("add", "2", a=1, b=1)), LAST
        ),
        [ask, add],
        checkpointer=InMemorySaver(),
    )
    waiting = run.invoke(agent, HELLO, "1")
    return [waiting, run.invoke(agent, Command(resume="yes"), "1")]


def reviewed(run: Any) -> Any:
    """Have a person approve, edit and reject calls."""
    script = [
        asks(call("add", "1", a=1, b=2), call("ask", "2", question="w?")),
        asks(call("add", "3", a=5, b=5)),
        LAST,
    ]
    human = HumanInTheLoopMiddleware({"add": True, "ask": False})
    edited = {"name": "add", "args": {"a": 40, "b": 2}}
    decisions = (
        [{"type": "approve"}],
        [{"type": "edit", "edited_action": edited}],
        [{"type": "reject", "message": "not now"}],
    )
    outputs = []
    for number, decision in enumerate(decisions):
        agent = create_agent(
            model(*script), [add, ask], middleware=[human], checkpointer=InMemorySaver()
        )
        thread = str(number)
        outputs.append(run.invoke(agent, HELLO, thread))
        outputs += [
            run.invoke(agent, Command(resume=answer), thread)
            for answer in (
                {"decisions": decision},
                "yes",
                {"decisions": [{"type": "approve"}]},
            )
        ]
    return outputs


def stops(run: Any) -> Any:
    """Stop before the tools, and go on without new input."""
    agent = create_agent(
        model(asks(call("add", "1", a=1, b=2)), LAST),
        [add],
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    first = run.invoke(agent, HELLO, "1")
    waiting = agent.get_state({"configurable": {"thread_id": "1"}}).next
    return [first, waiting, run.invoke(agent, None, "1")]


# ---------------------------------------------------------------- streams


def streams(run: Any) -> Any:
    """Stream updates, values, messages, tools and what tools write."""
    shown = {}
    for mode in ("updates", "values", "custom", "tools", "messages"):
        agent = create_agent(
            model(asks(call("describe", "1", word="w")), LAST),
            [describe],
            middleware=[greet],
            name="ann",
        )
        shown[mode] = run.stream(agent, HELLO, mode)
    return shown


def nested_streams(run: Any) -> Any:
    """Stream an agent that is a node, with and without nested graphs."""
    shown = []
    for subgraphs in (False, True):
        agent = create_agent(
            model(asks(call("describe", "1", word="w")), LAST), [describe], name="ann"
        )
        builder = StateGraph(MessagesState).add_node("agent", agent)
        app = builder.add_edge(START, "agent").compile()
        shown += [
            run.stream(app, HELLO, mode, subgraphs=subgraphs)
            for mode in ("updates", "tools")
        ]
    return shown


def events(run: Any) -> Any:
    """Read a run by LangGraph's reader: values, messages, tools and the output."""
    shown = {}
    for projection in ("values", "messages", "tool_calls", "lifecycle"):
        agent = create_agent(
            model(asks(call("describe", "1", word="w")), LAST), [describe], name="ann"
        )
        builder = StateGraph(MessagesState).add_node("agent", agent)
        app = builder.add_edge(START, "agent").compile()
        shown[projection] = run.events(agent, HELLO, projection)
        if projection != "tool_calls":  # a graph has a transformer for them if it asks
            shown[f"{projection} of a graph"] = run.events(app, HELLO, projection)
    return shown


# ---------------------------------------------------------------- several agents


def agent_as_tool(run: Any) -> Any:
    """Call an agent in a tool of another one, and answer its question."""
    helper = create_agent(
        model(
            asks(call("ask", "1", question="why?")), AIMessage("because", id="inner")
        ),
        [ask],
        name="helper",
    )

    @tool
    def consult(topic: str) -> str:
        """Ask the helper."""
        answer = helper.invoke({"messages": [HumanMessage(topic, id="topic")]})
        return answer["messages"][-1].content

    agent = create_agent(
        model(asks(call("consult", "9", topic="t")), LAST),
        [consult],
        checkpointer=InMemorySaver(),
    )
    waiting = run.invoke(agent, HELLO, "1")
    return [waiting, run.invoke(agent, Command(resume="yes"), "1")]


def agents_in_a_graph(run: Any) -> Any:
    """Run two agents one after the other."""
    builder = StateGraph(MessagesState)
    for name, number in (("first", 1), ("second", 2)):
        script = [
            asks(call("add", str(number), a=number, b=2)),
            AIMessage(name, id=name),
        ]
        builder.add_node(name, create_agent(model(*script), [add], name=name))
    builder.add_edge(START, "first").add_edge("first", "second")
    return run.invoke(builder.compile(), HELLO)


PROGRAMS = (
    tools,
    no_tools,
    failing_tool,
    direct_answer,
    own_state,
    store,
    structured,
    structured_twice,
    hooks,
    hook_functions,
    prompts,
    extra_tools,
    caught_errors,
    retried_tool,
    fallback,
    limits,
    strict_limit,
    redaction,
    summary,
    todos,
    sync_wrappers,
    question_of_a_tool,
    reviewed,
    stops,
    streams,
    nested_streams,
    events,
    events_of_nested_agents,
    agent_as_tool,
    agents_in_a_graph,
)
