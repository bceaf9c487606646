"""`Pregel`: a compiled graph, to be run, looked at and edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowpregel._engine.drivers import elsewhere
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.running import Running
from flowpregel.pregel.schemas import Schemas

if TYPE_CHECKING:
    from flowpregel._core.records import Saved
    from flowpregel.pregel.drawing import Graph, RunDrawing, TaskRecord
    from flowpregel.pregel.runs import Nests, Which
    from flowpregel.pregel.snapshot import PregelTask

Config = Mapping[str, Any]


class Pregel(Running, Schemas):
    """Nodes and channels, run in supersteps.

    In each superstep the nodes that are due run side by side; what they write
    becomes visible to others in the next. The run ends when no node is due.

    Args:
        nodes: By name; a `PregelNode`, a `NodeBuilder` or a `Channel` pipe.
        channels: By name; channels, or managed values such as `RemainingSteps`.
        auto_validate: Whether to check at once that they fit together.
        stream_mode: What `stream` yields by default.
        output_channels: What a run returns: one channel's value, or a dict of several.
        stream_channels: What state and streams show; by default all channels.
        interrupt_after_nodes, interrupt_before_nodes: Where runs stop until they
            are resumed: node names, or ``"*"``.
        input_channels: What a run is given.
        step_timeout: The most seconds a superstep may take.
        debug: Whether to print updates and values.
        checkpointer: Keeps the state of threads: a saver, or the path of an LMDB
            folder. For a nested graph: None is the saver of the graph around,
            True the same with one history per thread, False none.
        store: A long-term store for what outlives threads.
        cache: Shares results between runs, for nodes with a cache policy.
        retry_policy, cache_policy: For nodes that have none of their own.
        context_schema: The class that a run's ``context`` dict becomes.
        config: Defaults of every run.
        name: Shown in drawings and messages.
        executor: Where nodes run: ``"processes"``, ``"threads"``, ``"inline"``, or
            an executor.

    Raises:
        ConfigurationError: Nodes and channels do not fit together.

    Example:
        >>> from flowpregel.channels import LastValue
        >>> from flowpregel.pregel import NodeBuilder, Pregel
        >>> double = NodeBuilder().subscribe_only("a").do(lambda x: x + x).write_to("b")
        >>> app = Pregel(
        ...     nodes={"double": double},
        ...     channels={"a": LastValue(str), "b": LastValue(str)},
        ...     input_channels="a",
        ...     output_channels="b",
        ...     executor="inline",
        ... )
        >>> app.invoke("foo")
        'foofoo'
    """

    def get_graph(self, config: Any = None, *, xray: bool | int = False) -> Graph:
        """Return a drawing of the graph: ``draw_mermaid()``, ``draw_ascii()``, notebooks.

        Args:
            config: Not used; LangGraph's programs pass it.
            xray: Whether to draw the graphs that are nodes too; a number is how deep.
        """
        from flowpregel.pregel.drawing import graph_of  # noqa: PLC0415 - seldom needed

        writes = {
            name: {key for writer in node.writers for key in getattr(writer, "channels", ())}
            for name, node in self.nodes.items()
        }
        depth = (1 << 30) if xray is True else int(xray)
        inner = {}
        if depth > 0:
            inner = {
                name: graph.get_graph(xray=depth - 1)
                for name, graph in self.get_subgraphs()
                if isinstance(graph, Pregel)
            }
        return graph_of(
            {name: node.triggers for name, node in self.nodes.items()},
            writes,
            self.input_channels,
            self.output_channels,
            subgraphs=inner,
        )

    async def aget_graph(self, config: Any = None, *, xray: bool | int = False) -> Graph:
        """`get_graph`, for programs that await it."""
        return self.get_graph(config, xray=xray)

    def get_run(
        self,
        config: Config | None = None,
        *,
        xray: bool | int = False,
        limit: int | None = None,
        **settings: Any,
    ) -> RunDrawing:
        """Return what a thread's last run did: which tasks, when, how long, what failed.

        It draws itself like `get_graph`: ``draw_ascii()`` is a table,
        ``draw_mermaid()`` the graph in colours; ``tasks`` is the data.
        It may be asked while the run goes on, in this process or another.

        Args:
            config: Names the thread, and perhaps the checkpoint to look back from;
                or pass ``thread_id=``.
            xray: Whether to look into graphs that are nodes too; a number is how deep.
            limit: Only the newest of its supersteps, at most this many.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.

        Example:
            >>> print(app.get_run(thread_id="1"))  # doctest: +SKIP
            step 0  ✓ load  ████████████████████  0.500 s
            step 1  ✗ rank  ██                    0.051 s  KeyError: 'score'
        """
        from flowpregel.pregel.drawing import draw_run  # noqa: PLC0415 - seldom needed
        from flowpregel.pregel.runs import Nests, last_run  # noqa: PLC0415 - as above

        saver, parsed = self._opened(config, settings)
        graph = self._graph_at(parsed.namespace)
        assert isinstance(graph, Pregel)
        history = last_run(saver, parsed.address, limit)
        nests = Nests(saver, parsed.address.thread_id)
        depth = (1 << 30) if xray is True else int(xray)
        return draw_run(graph.get_graph(xray=xray), graph.tasks_of(saver, history, nests, depth))

    def tasks_of(
        self, saver: BaseCheckpointSaver, history: Sequence[Saved], nests: Nests, depth: int
    ) -> list[TaskRecord]:
        """Return the tasks of a run of this graph, and *depth* levels of those in them."""
        from flowpregel.pregel.runs import (  # noqa: PLC0415 - seldom needed
            last_run,
            prefixed,
            tasks_of,
        )

        def inside(saved: Saved, which: Which, name: str, node: str) -> Iterator[TaskRecord]:
            graph = self.nodes[name].bound if which[1] is None and name in self.nodes else None
            keeper, address = saver, nests.of(which)
            if isinstance(graph, Pregel):
                address = graph.address_in(saved.address, f"{name}:{which[0]}")
                if isinstance(graph.checkpointer, BaseCheckpointSaver):
                    keeper = graph.checkpointer
            if depth <= 0 or address is None:
                return
            inner = last_run(keeper, address, around=saved)
            tasks = (
                graph.tasks_of(keeper, inner, nests, depth - 1)
                if isinstance(graph, Pregel)
                else tasks_of(inner)
            )
            yield from (prefixed(each, f"{node}:") for each in tasks)

        def due(saved: Saved) -> Sequence[PregelTask]:
            whole = saver.load(saved.address)
            return () if whole is None else self.snapshot_of(saver, whole, False, deep=False).tasks

        return tasks_of(history, due, inside)

    async def aget_run(self, config: Config | None = None, **asked: Any) -> RunDrawing:
        """`get_run`, without blocking the event loop."""
        return await elsewhere(self.get_run, config, **asked)

    def clear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Forget shared results: of *nodes*, or of all.

        Raises:
            ConfigurationError: The graph has no cache.
        """
        if self.cache is None:
            raise ConfigurationError(f"graph {self.name!r} has no cache to clear")
        self.cache.clear([self.cache_namespace(name) for name in nodes or self.nodes])

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """`clear_cache`, without blocking the event loop."""
        await elsewhere(self.clear_cache, nodes)

    def cache_namespace(self, node: str) -> tuple[str, ...]:
        """Return where the shared results of a node are kept."""
        if node not in self.nodes:
            raise ConfigurationError(f"graph {self.name!r} has no node {node!r}")
        return self.program.nodes[node].space
