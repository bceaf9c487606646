"""`StateGraph`: nodes and edges around a shared state."""

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
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy, TracePolicy
from flowpregel.pregel.definition import END, START, Where
from flowpregel.pregel.node import is_graph

__all__ = ["CompiledStateGraph", "StateGraph"]

Retry = RetryPolicy | Sequence[RetryPolicy]
Timeout = float | timedelta | TimeoutPolicy
Destinations = Mapping[str, str] | Sequence[str]


class StateGraph(GraphSpec):
    """Nodes that read and write a shared state, and the edges that order the nodes.

    A node takes the state and returns an update of the state. Nodes of the same
    superstep run in parallel; their updates become visible to other nodes in the next
    superstep.

    Args:
        state_schema: The state: a TypedDict, a dataclass or a pydantic model
            whose annotations may name reducers, channels and managed values
            (``Annotated[list, operator.add]``), or a plain type.
        context_schema: The class to which a run's ``context`` dict is converted.
        input_schema, output_schema: The parts of the state that a run takes and
            returns; by default the whole state.

    Raises:
        ConfigurationError: A key of a schema cannot be a channel.

    Example:
        >>> from typing import TypedDict
        >>> from flowpregel.graph import START
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
        trace_policy: TracePolicy | None = None,
        executor: Any = None,
        isolation: Literal["fresh"] | None = None,
    ) -> Self:
        """Add a node, and return the graph.

        Args:
            node: The name of the node. You can also pass the action here; the node then
                gets the action's name.
            action: A function of the state, another compiled graph, or an object with
                ``invoke`` or ``ainvoke``. It returns a dict with an update of the
                state, a `Command`, a list of these, or None.
            defer: Whether the node runs only when no other node is left to run.
            metadata: Values that are shown in streams.
            input_schema: The part of the state that the node gets; by default the class
                that the first parameter is annotated with, or the whole state.
            retry_policy: Decides whether a failed attempt is retried. Of several
                policies, the first that matches the error decides.
            cache_policy: Shares the results of the node between runs.
            error_handler: A function that is called when the last attempt has failed.
                It gets the same input, and the exception if it has a parameter
                ``error``.
            destinations: The nodes that a `Command` of the node may go to, for
                drawings; a dict adds labels. By default the nodes in the annotation
                ``-> Command[Literal[...]]``.
            timeout: The maximum number of seconds for an attempt, or a policy.
            trace_policy: The values that tracers record for the input and the output of
                the node; by default the input and the output.
            executor: ``"processes"``, ``"threads"``, ``"inline"``, or an executor. None
                means the executor of the graph.
            isolation: ``"fresh"`` runs each attempt in a new worker process.

        Raises:
            ConfigurationError: The name is taken or reserved, or the action
                cannot be called.
        """
        if not isinstance(node, str):
            action = node
            node = name_of(action)
        self._check_name(node)
        bound = _callable(node, action)
        schema_type = input_schema or self._input_schema_of(action)
        spec = NodeSpec(
            bound=bound,
            schema=self._add_schema(schema_type),
            defer=defer,
            metadata=metadata or {},
            retry_policy=retry_policy,
            cache_policy=cache_policy,
            timeout=timeout,
            trace_policy=trace_policy,
            ends=_ends_of(action, destinations),
            executor=executor,
            isolation=isolation,
        )
        if error_handler is not None:
            spec.error_handler = self._add_error_handler(node, error_handler, spec)
        self.nodes[node] = spec
        return self

    def _input_schema_of(self, action: Any) -> Any:
        """Return the part of the state that the annotations of *action* request."""
        inferred = None if is_graph(action) else input_schema_of(action)
        return inferred or self.state_schema

    def _add_error_handler(
        self, node: str, handler: Callable[..., Any], spec: NodeSpec
    ) -> str:
        """Add a node that handles errors of *node*, and return its name."""
        name = f"__error_handler__{node}"
        self.nodes[name] = NodeSpec(
            bound=_callable(getattr(handler, "__name__", name), handler),
            # The handler has the schema of the failed node, because it gets that node's
            # input.
            schema=spec.schema,
            ends=destinations_of(handler),
            is_handler=True,
            executor=spec.executor,
        )
        return name

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
                    f"node name {name!r}"
                )

    def set_node_defaults(
        self,
        *,
        retry_policy: Retry | None = None,
        cache_policy: CachePolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
        timeout: Timeout | None = None,
    ) -> Self:
        """Set default options for nodes that do not set them, and return the graph.

        Args:
            retry_policy, timeout: Defaults for all nodes, including error handlers.
            cache_policy, error_handler: Defaults for all nodes except error handlers.

        Example:
            >>> from flowpregel import RetryPolicy
            >>> graph = StateGraph(dict)
            >>> graph = graph.set_node_defaults(retry_policy=RetryPolicy(), timeout=60)
            >>> sorted(graph.defaults)
            ['retry_policy', 'timeout']
        """
        options = {
            "retry_policy": retry_policy,
            "cache_policy": cache_policy,
            "error_handler": error_handler,
            "timeout": TimeoutPolicy.coerce(timeout),
        }
        for name, option in options.items():
            if option is not None:
                self.defaults[name] = option
        return self

    # ------------------------------------------------------------ edges

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """Run *end_key* after *start_key*, and return the graph.

        Args:
            start_key: A node, or `START`. After a list of nodes, *end_key* runs when
                all of them have run.
            end_key: A node, or `END`.

        Raises:
            ConfigurationError: The edge begins at `END` or ends at `START`, or an edge
                from a list of nodes names a node that was not added before.

        Example:
            >>> from flowpregel.graph import START
            >>> graph = StateGraph(dict).add_node("load", dict).add_node("rank", dict)
            >>> sorted(graph.add_edge(START, "load").add_edge("load", "rank").edges)
            [('__start__', 'load'), ('load', 'rank')]
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
        """Call *path* after *source* to choose the next nodes, and return the graph.

        Args:
            source: A node, or `START`.
            path: A function of the state after the writes of *source*. It returns the
                name of a node, `END`, a `Send`, or a list of these.
            path_map: The node for each result of *path*, or a list of the node names
                that *path* may return. By default the names in the annotation ``->
                Literal[...]`` or, without such an annotation, all nodes.

        Raises:
            ConfigurationError: *source* has a branch of this name, or *path* cannot be
                called.

        Example:
            >>> from typing import TypedDict
            >>> from flowpregel.graph import END, START
            >>> class State(TypedDict):
            ...     count: int
            >>> def add(state: State) -> dict:
            ...     return {"count": state["count"] + 1}
            >>> graph = StateGraph(State).add_node(add).add_edge(START, "add")
            >>> def choose(state: State) -> str:
            ...     return "add" if state["count"] < 3 else END
            >>> graph = graph.add_conditional_edges("add", choose, ["add", END])
            >>> graph.compile(executor="inline").invoke({"count": 0})
            {'count': 3}
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
            ConfigurationError: *nodes* is empty, or a name is taken.

        Example:
            >>> graph = StateGraph(dict).add_sequence([("load", dict), ("rank", dict)])
            >>> sorted(graph.nodes), sorted(graph.edges)
            (['load', 'rank'], [('load', 'rank')])
        """
        if not nodes:
            raise ConfigurationError("Sequence requires at least one node.")
        previous: str | None = None
        for item in nodes:
            if isinstance(item, tuple) and len(item) == 2:
                name, action = item
            else:
                name = name_of(item)
                action = item
            self.add_node(name, action)
            if previous is not None:
                self.add_edge(previous, name)
            previous = name
        return self

    def set_entry_point(self, key: str) -> Self:
        """Begin with the node *key*: ``add_edge(START, key)``.

        Example:
            >>> graph = StateGraph(dict).add_node("load", dict)
            >>> sorted(graph.set_entry_point("load").edges)
            [('__start__', 'load')]
        """
        return self.add_edge(START, key)

    def set_conditional_entry_point(
        self,
        path: Callable[..., Any],
        path_map: Mapping[Any, str] | Sequence[str] | None = None,
    ) -> Self:
        """Begin with the nodes that *path* returns: ``add_conditional_edges(START,
        ...)``.

        Args:
            path, path_map: As `add_conditional_edges` takes them.

        Example:
            >>> from typing import TypedDict
            >>> from flowpregel.graph import END
            >>> class State(TypedDict):
            ...     size: int
            >>> graph = StateGraph(State).add_node("shrink", lambda state: {"size": 9})
            >>> graph = graph.set_conditional_entry_point(
            ...     lambda state: "shrink" if state["size"] > 9 else END,
            ...     ["shrink", END],
            ... )
            >>> app = graph.compile(executor="inline")
            >>> app.invoke({"size": 5}), app.invoke({"size": 50})
            ({'size': 5}, {'size': 9})
        """
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> Self:
        """End after the node *key*: ``add_edge(key, END)``.

        Example:
            >>> graph = StateGraph(dict).add_node("rank", dict)
            >>> sorted(graph.set_finish_point("rank").edges)
            [('rank', '__end__')]
        """
        return self.add_edge(key, END)

    # ------------------------------------------------------------ compilation

    # The method is hidden from type checkers, so that they report unknown attributes.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise `AttributeError`, with advice to call `compile` if a compiled graph
            has the attribute.
            """
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
        transformers: Sequence[Callable[..., Any]] | None = None,
        executor: Any = None,
        migrate: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        **misspelled: Never,
    ) -> CompiledStateGraph:
        """Return the graph as a `Pregel` that can be run.

        Nodes and edges that are added later are not part of the returned graph.

        Args:
            checkpointer: A saver for the state of threads, or the path of an LMDB
                folder. For a nested graph, None means the saver of the outer graph,
                True means the same saver with one history per thread, and False means
                no saver.
            cache: A cache for nodes with a cache policy.
            store: A long-term store, which outlives threads.
            interrupt_before, interrupt_after: The nodes before or after which a run
                stops until it is resumed, or ``"*"``.
            debug: Whether to print updates and values.
            name: The name of the graph in drawings and messages.
            transformers: The transformers of `Pregel.stream_events`: classes, or
                functions that take a graph's namespace and return a transformer.
            executor: The executor of nodes that do not set one: ``"processes"``,
                ``"threads"``, ``"inline"``, or an executor.
            migrate: Converts the state of an old thread to the channels of this graph;
                see `Pregel`.

        Raises:
            ConfigurationError: Nodes, edges and breakpoints do not fit together.
            TypeError: An option is unknown.
        """
        for option in misspelled:
            known = [*signature(self.compile).parameters][:-1]
            raise TypeError(no_such_option("compile()", option, known))
        for where in (interrupt_before, interrupt_after):
            breakpoints = () if where == "*" else where
            self.validate(breakpoints)
        return CompiledStateGraph(
            builder=self,
            checkpointer=checkpointer,
            cache=cache,
            store=store,
            interrupt_before_nodes=interrupt_before or (),
            interrupt_after_nodes=interrupt_after or (),
            debug=debug,
            name=name or "LangGraph",
            stream_transformers=transformers or (),
            executor=executor,
            migrate=migrate,
        )


def _callable(name: str, action: Any) -> Any:
    """Return *action* after a check that it can be called.

    Raises:
        ConfigurationError: *action* is None or cannot be called.
    """
    if action is None:
        raise ConfigurationError(
            f"node {name!r} has no action: add_node({name!r}, function)"
        )
    if not is_graph(action):
        try:
            call_target_of(action)
        except ConfigurationError as error:
            raise ConfigurationError(f"node {name!r}: {error}") from error
    return action


def _ends_of(action: Any, destinations: Destinations | None) -> dict[str, str | None]:
    """Return the nodes that a `Command` of *action* may go to, with labels."""
    if destinations is None:
        return destinations_of(action)
    if isinstance(destinations, Mapping):
        return dict(destinations)
    return dict.fromkeys(destinations)


def _path_map(
    path: Any, path_map: Mapping[Any, str] | Sequence[str] | None
) -> Mapping[Any, str] | None:
    """Return the node for each result of *path*, or None if any node is possible."""
    if isinstance(path_map, Mapping):
        return dict(path_map)
    names = path_map
    if names is None or isinstance(names, str):
        names = literals_of(path)
    return {name: name for name in names} or None
