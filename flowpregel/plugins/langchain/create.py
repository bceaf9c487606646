"""`create_agent`: LangChain's agent with middleware, as a graph that flowpregel
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.tools import BaseTool

from flowpregel.graph import CompiledStateGraph
from flowpregel.plugins.langgraph import install


def create_agent(
    model: str | BaseChatModel,
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any]] | None = None,
    *,
    executor: Any = "threads",
    **options: Any,
) -> CompiledStateGraph:
    """Return the agent that LangChain's ``create_agent`` makes, as a graph of
    flowpregel.

    The agent is LangChain's own (`langchain.agents.create_agent`), imported under the
    hook `flowpregel.plugins.langgraph.install`, which this function installs. From then
    on, flowpregel answers all imports of `langgraph` in this program. So call the
    function, or `install`, before you import `langchain` or `langgraph`.

    Args:
        model: A chat model, or a name for LangChain's ``init_chat_model``.
        tools: Tools, functions to make tools of, and dicts for tools that the model's
            provider runs.
        executor: The executor of the nodes. A model waits for its provider, and few can
            be sent to another process: by default ``"threads"``.
        options: The options of LangChain's function: ``system_prompt``, ``middleware``,
            ``response_format``, ``state_schema``, ``checkpointer``, ``store``, ``name``
            and others. A checkpointer may be the path of an LMDB folder.

    Raises:
        ConfigurationError: LangGraph is imported already.
        ImportError: LangChain is not installed.

    Example:
        >>> from flowpregel.plugins.langchain import create_agent
        >>> def double(number: int) -> int:
        ...     "Double a number."
        ...     return 2 * number
        >>> agent = create_agent(  # doctest: +SKIP
        ...     "anthropic:claude-sonnet-4-5", [double], checkpointer="chats.lmdb"
        ... )
        >>> question = {"messages": [("user", "What is twice 21?")]}
        >>> agent.invoke(question, thread_id="chat-1")  # doctest: +SKIP
        {'messages': [...]}
    """
    install()
    try:
        from langchain import agents  # noqa: PLC0415 - after the hook is installed
    except ModuleNotFoundError as error:
        if error.name != "langchain":
            raise
        raise ImportError(
            "create_agent needs LangChain, which is not installed; get it with: "
            "pip install langchain"
        ) from error
    agent = agents.create_agent(model, tools, **options)
    return cast(CompiledStateGraph, agent.copy({"executor": executor}))
