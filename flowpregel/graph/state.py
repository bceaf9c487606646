"""`StateGraph`: nodes and edges around a shared state, to be compiled and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self

from flowpregel._core.commands import call_target_of, name_of
from flowpregel._text import no_such_option
from flowpregel.errors import ConfigurationError
from flowpregel.graph.compile import CompiledStateGraph
from flowpregel.graph.spec import (
    BranchSpec,
    GraphSpec,
    NodeSpec,
    destinations_of,
    input_schema_of,
    literals_of,
)
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
from flowpregel.pregel.definition import END, START, Where
from flowpregel.pregel.node import is_graph

__all__ = ["CompiledStateGraph", "StateGraph"]

Retry = RetryPolicy | Sequence[RetryPolicy]
Timeout = float | timedelta | TimeoutPolicy
Destinations = Mapping[str, str] | Sequence[str]


class StateGraph(GraphSpec):
    """Nodes that read and write one state, and the edges along which they run.

    A node takes the state and returns what it changes in it. Nodes that are
    reached in the same superstep run side by side; what they return becomes
    visible to others in the next.

    Args:
        state_schema: The state: a TypedDict, a dataclass or a pydantic model
            whose annotations may name reducers, channels and managed values
            (``Annotated[list, operator.add]``), or a plain type.
        context_schema: The class that a run's ``context`` dict becomes.
        input_schema, output_schema: What of the state a run takes and gives; by
            default all of it.

    Raises:
        ConfigurationError: A key of a schema cannot be a channel.

    Example:
        >>> from typing import TypedDict
        >>> class State(TypedDict):
        ...     topic: str
        ...     essay: str
        >>> def write(state: State) -> dict:
        ...     return {"essay": f"On {state['topic']}"}
        >>> graph = StateGraph(State).add_node(write).add_edge(START, "write")
        >>> graph.compile(executor="inline").invoke({"topic": "cats"})["essay"]
        'On cats'
    """

    # ------------------------------------------------------------ nodes

    def add_node(  # noqa: PLR0913 - LangGraph's signature
        self,
        node: Any,
        action: Any = None,
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: Any = None,
        retry_policy: Retry | None = None,
        cache_policy: CachePolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
        destinations: Destinations | None = None,
        timeout: Timeout | None = None,
        executor: Any = None,
        isolation: Literal["fresh"] | None = None,
    ) -> Self:
        """Add a node, and return the graph.

        Args:
            node: Its name; or the action, which then names it.
            action: What it does: a function of the state, another compiled
                graph, or an object with ``invoke`` or ``ainvoke``. It returns a
                dict of what it changes, a `Command`, several of them, or None.
            defer: Run it when nothing else is left to run.
            metadata: Shown in streams.
            input_schema: What of the state it is given; by default the class its
                first parameter is annotated with, or the whole state.
            retry_policy: When it is tried again; of several, the first that fits.
            cache_policy: Share its results between runs.
            error_handler: Called with the same input, and an ``error`` if it asks
                for one, when the node has failed for good.
            destinations: The nodes its `Command` leads to (a dict adds labels),
                for drawings; by default what ``-> Command[Literal[...]]`` says.
            timeout: The most seconds an attempt may take, or a policy.
            executor: Where it runs: ``"processes"``, ``"threads"``, ``"inline"``,
                or an executor; None is the graph's.
            isolation: ``"fresh"`` gives each attempt a worker process of its own.

        Raises:
            ConfigurationError: The name is taken or reserved, or the action
                cannot be called.
        """
        if not isinstance(node, str):
            node, action = name_of(node), node
        if action is None:
            raise ConfigurationError(
                f"node {node!r} has no action: add_node({node!r}, function)"
            )
        self._check_name(node)
        inferred = None if is_graph(action) else input_schema_of(action)
        schema = self._add_schema(input_schema or inferred or self.state_schema)
        ends: dict[str, str | None] = (
            destinations_of(action) if destinations is None else {}
        )
        for end in destinations or ():
            ends[end] = destinations[end] if isinstance(destinations, Mapping) else None
        handler = None
        if error_handler is not None:
            handler = f"__error_handler__{node}"
            # It reads what the failed node was given.
            self.nodes[handler] = NodeSpec(
                bound=_callable(
                    getattr(error_handler, "__name__", handler), error_handler
                ),
                schema=schema,
                ends=destinations_of(error_handler),
                is_handler=True,
                executor=executor,
            )
        self.nodes[node] = NodeSpec(
            bound=_callable(node, action),
            schema=schema,
            defer=defer,
            metadata=metadata or {},
            retry_policy=retry_policy,
            cache_policy=cache_policy,
            timeout=timeout,
            ends=ends,
            error_handler=handler,
            executor=executor,
            isolation=isolation,
        )
        return self

    def _check_name(self, name: str) -> None:
        if name in self.nodes:
            raise ConfigurationError(
                f"Node {name!r} already present: give it another name"
            )
        if name in (START, END):
            raise ConfigurationError(f"Node {name!r} is reserved")
        for character in "|:":
            if character in name:
                raise ConfigurationError(
                    f"{character!r} is a reserved character and is not allowed in the "
                    "node "
                    f"name {name!r}"
                )

    def set_node_defaults(
        self,
        *,
        retry_policy: Retry | None = None,
        cache_policy: CachePolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
        timeout: Timeout | None = None,
    ) -> Self:
        """Say what nodes get that do not say it themselves, and return the graph.

        Args:
            retry_policy, timeout: For all nodes, error handlers too.
            cache_policy, error_handler: For all nodes but error handlers.
        """
        given = {
            "retry_policy": retry_policy,
            "cache_policy": cache_policy,
            "error_handler": error_handler,
            "timeout": TimeoutPolicy.coerce(timeout),
        }
        self.defaults |= {
            key: value for key, value in given.items() if value is not None
        }
        return self

    # ------------------------------------------------------------ edges

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """Let *end_key* run after *start_key*, and return the graph.

        Args:
            start_key: A node, or `START`. A list of nodes: when all of them have run.
            end_key: A node, or `END`.

        Raises:
            ConfigurationError: It begins at the end or ends at the start, or a
                list names a node that is not there (yet).
        """
        starts = (start_key,) if isinstance(start_key, str) else tuple(start_key)
        if END in starts:
            raise ConfigurationError(
                f"END cannot be a start node (edge to {end_key!r})"
            )
        if end_key == START:
            raise ConfigurationError(
                f"START cannot be an end node (edge from {start_key!r})"
            )
        if isinstance(start_key, str):
            self.edges[start_key, end_key] = None
            return self
        if not starts:
            raise ConfigurationError(
                f"an edge to {end_key!r} needs a node to start from"
            )
        for name in (*starts, end_key):
            if name not in self.nodes and name != END:
                raise ConfigurationError(
                    f"Need to add_node {name!r} first (edge from {', '.join(starts)} "
                    f"to {end_key})"
                )
        self.waiting_edges[starts, end_key] = None
        return self

    def add_conditional_edges(
        self,
        source: str,
        path: Callable[..., Any],
        path_map: Mapping[Any, str] | Sequence[str] | None = None,
    ) -> Self:
        """Let *path* decide what runs after *source*, and return the graph.

        Args:
            source: A node, or `START`.
            path: A function of the state with what *source* wrote in it. It
                returns a node's name, `END`, a `Send`, or a list of them.
            path_map: Where each of its answers leads; a list is names it may
                return. By default what ``-> Literal[...]`` says, or any node.

        Raises:
            ConfigurationError: *source* has a branch of that name already, or
                *path* cannot be called.
        """
        call_target_of(path)
        name = name_of(path)
        branches = self.branches.setdefault(source, {})
        if name == "<lambda>":
            name = f"condition{len(branches) or ''}"
        if name in branches:
            raise ConfigurationError(
                f"Branch with name {name!r} already exists for node {source!r}"
            )
        inferred = input_schema_of(path)
        schema = None if inferred is None else self._add_schema(inferred)
        branches[name] = BranchSpec(
            path=path, ends=_path_map(path, path_map), schema=schema
        )
        return self

    def add_sequence(self, nodes: Sequence[Any]) -> Self:
        """Add nodes that run one after the other, and return the graph.

        Args:
            nodes: Actions, or (name, action) pairs.

        Raises:
            ConfigurationError: There are none, or a name is taken.
        """
        if not nodes:
            raise ConfigurationError("Sequence requires at least one node.")
        previous: str | None = None
        for item in nodes:
            is_pair = isinstance(item, tuple) and len(item) == 2
            name, action = item if is_pair else (name_of(item), item)
            self.add_node(name, action)
            if previous is not None:
                self.add_edge(previous, name)
            previous = name
        return self

    def set_entry_point(self, key: str) -> Self:
        """Begin with the node *key*: ``add_edge(START, key)``."""
        return self.add_edge(START, key)

    def set_conditional_entry_point(
        self,
        path: Callable[..., Any],
        path_map: Mapping[Any, str] | Sequence[str] | None = None,
    ) -> Self:
        """Let *path* decide what to begin with: ``add_conditional_edges(START,
        ...)``.
        """
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> Self:
        """End after the node *key*: ``add_edge(key, END)``."""
        return self.add_edge(key, END)

    # ------------------------------------------------------------ what it makes

    if not TYPE_CHECKING:  # type checkers refuse them by themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse what only a compiled graph has, and name the way to it."""
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(CompiledStateGraph, name):
                text += f": a graph is compiled before it runs: write .compile().{name}"
            raise AttributeError(text)

    def compile(  # noqa: PLR0913 - LangGraph's signature
        self,
        checkpointer: Any = None,
        *,
        cache: Any = None,
        store: Any = None,
        interrupt_before: Where | None = None,
        interrupt_after: Where | None = None,
        debug: bool = False,
        name: str | None = None,
        executor: Any = None,
        migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        **misspelled: Never,
    ) -> CompiledStateGraph:
        """Return the graph as a `Pregel`, to be run. It does not change any more.

        Args:
            checkpointer: Keeps the state of threads: a saver, or the path of an
                LMDB folder. In another graph: None is that graph's, True the same
                with one history per thread, False none.
            cache: Shares results between runs, for nodes with a cache policy.
            store: A long-term store for what outlives threads.
            interrupt_before, interrupt_after: Nodes where runs stop until they
                are resumed, or ``"*"``.
            debug: Whether to print updates and values.
            name: Shown in drawings and messages.
            executor: Where nodes run that do not say it: ``"processes"``,
                ``"threads"``, ``"inline"``, or an executor.
            migrate: Brings the values of an old thread's state to this graph's; see
                `Pregel`.

        Raises:
            ConfigurationError: Nodes, edges and breakpoints do not fit together.
            TypeError: There is no such option.
        """
        for option in misspelled:
            known = [*signature(self.compile).parameters][:-1]
            raise TypeError(no_such_option("compile()", option, known))
        for where in (interrupt_before, interrupt_after):
            self.validate(() if where == "*" else where)
        return CompiledStateGraph(
            builder=self,
            checkpointer=checkpointer,
            cache=cache,
            store=store,
            interrupt_before_nodes=interrupt_before or (),
            interrupt_after_nodes=interrupt_after or (),
            debug=debug,
            name=name or "LangGraph",
            executor=executor,
            migrate=migrate,
        )


def _callable(name: str, action: Any) -> Any:
    """Return *action* if a node can call it."""
    if not is_graph(action):
        try:
            call_target_of(action)
        except ConfigurationError as error:
            raise ConfigurationError(f"node {name!r}: {error}") from error
    return action


def _path_map(
    path: Any, given: Mapping[Any, str] | Sequence[str] | None
) -> Mapping[Any, str] | None:
    if isinstance(given, Mapping):
        return dict(given)
    names = literals_of(path) if given is None or isinstance(given, str) else given
    return {name: name for name in names} or None
