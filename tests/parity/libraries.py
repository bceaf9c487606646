"""Either library behind the names that programs import, so that one test body runs on
both.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Library:
    """LangGraph or flowpregel.

    Args:
        name: The package.
    """

    name: str

    def of(self, path: str) -> Any:
        """Return the module or the attribute at *path*: ``graph``,
        ``graph.StateGraph``.
        """
        try:
            return import_module(f"{self.name}.{path}")
        except ModuleNotFoundError:
            home, _, name = path.rpartition(".")
            return getattr(import_module(f"{self.name}.{home}"), name)

    def __reduce__(self) -> Any:
        return Library, (self.name,)

    @property
    def is_ours(self) -> bool:
        """Whether it is flowpregel."""
        return self.name == "flowpregel"

    def graph(self, schema: Any, *nodes: Any) -> Any:
        """Return a builder of *nodes*, one after the other."""
        builder = self.of("graph.StateGraph")(schema).add_sequence(nodes)
        first = nodes[0]
        name = first[0] if isinstance(first, tuple) else first.__name__
        return builder.add_edge("__start__", name)

    def compile(self, builder: Any, **options: Any) -> Any:
        """Compile *builder*, with a saver unless *options* name another."""
        own = {"executor": "inline"} if self.is_ours else {}
        options = {
            "checkpointer": self.of("checkpoint.memory.InMemorySaver")(),
            **own,
            **options,
        }
        return builder.compile(**options)


BOTH = [Library("langgraph"), Library("flowpregel")]
CONFIG = {"configurable": {"thread_id": "1"}}
