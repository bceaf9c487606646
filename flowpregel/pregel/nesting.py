"""Graphs inside graphs: how a nested run gets its place, its saver and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flowpregel._core.effects import StepContext, Steps
from flowpregel._core.program import Nested, Options
from flowpregel._core.records import Address, Arguments, Kind, Node, Task
from flowpregel._core.run import run
from flowpregel._engine.commits import Committer
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.base import PregelBase, names_where
from flowpregel.pregel.config import merged, of_keywords, parse
from flowpregel.pregel.request import with_saver


class Nesting(PregelBase):
    """The part of `Pregel` that runs inside another graph."""

    def nested_run(
        self, task: Task, setting: StepContext, around: RunContext
    ) -> tuple[Steps, RunContext]:
        """Return the run that *task* of another graph is, and what its tasks are given."""
        outer = around.options
        assert outer is not None
        committer = self._committer(around, outer)
        given, extra = _asked(task)
        parsed = parse(merged(around.config, self.config, extra))
        options = replace(
            self._nested_options(task, setting, around, outer),
            recursion_limit=parsed.recursion_limit,
        )
        own_id = parsed.checkpoint_map.get(options.namespace)
        if committer is not None and around.thread_id is not None:
            address = Address(around.thread_id, options.namespace, own_id)
            options = replace(with_saver(options, committer.saver), address=address)
        nested = Nested(
            resuming=setting.resuming or task.attempt > 1,
            answers=setting.answers,
            before=around.replayed_before if own_id is None else None,
            addressed=own_id is not None,
        )
        options = replace(options, nested=nested)
        inside = self._inside(around, committer, options)
        if task.variables is not None:
            inside = replace(inside, variables=task.variables)
        return run(self.program, options, given), inside

    def _nested_options(
        self, task: Task, setting: StepContext, around: RunContext, outer: Options
    ) -> Options:
        """Return the options of a nested run: its own breakpoints, the outer run's ways."""
        return replace(
            outer,
            address=None,
            loaded=None,
            namespace=self.namespace_of(task),
            interrupt_before=names_where(self.interrupt_before_nodes),
            interrupt_after=names_where(self.interrupt_after_nodes),
            output_channels=self.program.output_channels,
            modes=around.modes,
            step_timeout=self.step_timeout,
            retry=self.retry_policy,
            cache=self.cache_policy,
            metadata=_with_parent(outer, setting.checkpoint_id),
            fence=None,
            now=now(),
        )

    def _inside(
        self, around: RunContext, committer: Committer | None, options: Options
    ) -> RunContext:
        """Return what the tasks of a nested run are given."""
        return replace(
            around,
            committer=committer,
            namespace=options.namespace,
            options=options,
            store=self.store if self.store is not None else around.store,
            executor=self.executor if self.executor is not None else around.executor,
        )

    def _committer(self, around: RunContext, outer: Options) -> Committer | None:
        if self.checkpointer is None or self.checkpointer is True:
            return around.committer
        if isinstance(self.checkpointer, BaseCheckpointSaver):
            return around.committers.of(self.checkpointer, outer.durability)
        return None

    def namespace_of(self, task: Task) -> str:
        """Return where it keeps its checkpoints: with ``True`` the same place each time."""
        return self.namespace_at(task.namespace)

    def address_in(self, outer: Address, part: str) -> Address:
        """Return where it keeps its checkpoints as the task *part* (``name:id``) of *outer*."""
        place = f"{outer.namespace}|{part}" if outer.namespace else part
        return Address(outer.thread_id, self.namespace_at(place))

    def namespace_at(self, place: str) -> str:
        """Return where it keeps its checkpoints as a task whose own namespace is *place*."""
        if self.checkpointer is True:
            return "|".join(part.split(":", 1)[0] for part in place.split("|"))
        return place

    def call_nested(
        self, given: Any, config: Mapping[str, Any] | None, asked: Mapping[str, Any]
    ) -> Any:
        """Call the graph from a task of another, and return the future of its output."""
        scope = current_scope(f"graph {self.name!r}")
        unknown = asked.keys() & _OF_THE_OUTERMOST
        if unknown:
            raise ConfigurationError(
                f"{sorted(unknown)[0]} belongs to the outermost run, not to a graph called in it"
            )
        settings = {k: v for k, v in asked.items() if k not in ("stream_mode", "context", "debug")}
        own = merged(config, of_keywords(settings))
        # What it gives the stream is its own; the call itself, LangGraph does not show.
        node = Node(name=self.name, graph=self, role="graph", hidden=True)
        return scope.ends.call(node, Arguments((given,), own), None, self.name)

    def get_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Yield (namespace, graph) of the graphs that are nodes of this one.

        Args:
            namespace: Only the one of this namespace, such as ``"outer|inner"``.
            recurse: Those nested in them too.
        """
        for name, node in self.nodes.items():
            graph = node.bound
            if not isinstance(graph, Nesting):
                continue
            if namespace is None or namespace == name:
                yield name, graph
            if namespace is not None and not namespace.startswith(f"{name}|"):
                continue
            if recurse or namespace is not None:
                rest = None if namespace is None else namespace[len(name) + 1 :]
                for inner, found in graph.get_subgraphs(namespace=rest, recurse=recurse):
                    yield f"{name}|{inner}", found


def _with_parent(outer: Options, checkpoint_id: str) -> dict[str, Any]:
    """Return the metadata of a nested run: the outer's, and where in it this one belongs."""
    parents = {**outer.metadata.get("parents", {}), outer.namespace: checkpoint_id}
    return {**outer.metadata, "parents": parents}


_OF_THE_OUTERMOST = frozenset(
    {
        "interrupt_before", "interrupt_after", "control", "durability", "resume", "on_mismatch",
        "progress",
    }
)  # fmt: skip


def _asked(task: Task) -> tuple[Any, Mapping[str, Any]]:
    """Return the input of a nested run, and the config it was called with."""
    if task.kind is Kind.CALL:
        return task.input.args[0], task.input.kwargs
    return task.input, {}
