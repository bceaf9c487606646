"""Drawings of a program: its nodes and edges, and what a run did with them.

A `Graph` is plain data; the other modules here turn it into text and pictures::

    Graph ─┬─> mermaid ──────────────────────> Mermaid text
           ├─> layers ──> wires ──> canvas ──> boxes and lines in a terminal
           └─> dot ─────> graphviz ──────────> SVG, PNG
"""

from flowpregel.pregel.drawing.graph import END, START, Edge, Graph, NodeShape
from flowpregel.pregel.drawing.program import graph_of
from flowpregel.pregel.drawing.run import RunDrawing, TaskRecord, draw_run

__all__ = [
    "END",
    "START",
    "Edge",
    "Graph",
    "NodeShape",
    "RunDrawing",
    "TaskRecord",
    "draw_run",
    "graph_of",
]
