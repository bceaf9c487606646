"""A StateGraph pipeline with sends: texts are split, counted side by side, and joined.

    python examples/pipeline.py README.md docs/*.md

How many parts there are is known only when the texts have been read, so the
edge after ``read`` sends one task to ``count`` for each part.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Send

PART = 200
"""Lines that one task counts."""


def joined(counts: Counter[str], more: Counter[str]) -> Counter[str]:
    """Return two counts as one."""
    return counts + more


class State(TypedDict, total=False):
    """What the nodes share."""

    paths: list[str]
    parts: list[str]
    words: Annotated[Counter[str], joined]
    report: list[tuple[str, int]]


def read(state: State) -> dict[str, Any]:
    """Cut the texts into parts."""
    parts = []
    for path in state["paths"]:
        lines = Path(path).read_text("utf-8", "replace").splitlines(keepends=True)
        parts += ["".join(lines[i : i + PART]) for i in range(0, len(lines), PART)]
    return {"parts": parts}


def spread(state: State) -> list[Send] | str:
    """Ask for a task for each part."""
    return [Send("count", part) for part in state["parts"]] or "join"


def count(part: str) -> dict[str, Any]:
    """Count the words of one part."""
    return {"words": Counter(re.findall(r"[^\W\d_]{4,}", part.lower()))}


def join(state: State) -> dict[str, Any]:
    """Say which words are most frequent."""
    counts = state.get("words") or Counter()
    return {"report": sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]}


def pipeline(store: Any = None, executor: str = "processes") -> Any:
    """Return the compiled graph."""
    graph = StateGraph(State)
    for node in (read, count, join):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "read")
    graph.add_conditional_edges("read", spread, ["count", "join"])
    graph.add_edge("count", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=store, executor=executor)


def main(arguments: list[str] | None = None) -> None:
    """Count the words of the files on the command line."""
    parser = argparse.ArgumentParser(description="The most frequent words of texts.")
    parser.add_argument("paths", nargs="+")
    paths = parser.parse_args(arguments).paths
    for word, times in pipeline().invoke({"paths": paths})["report"]:
        print(f"{times:>7,}  {word}")


if __name__ == "__main__":
    main()
