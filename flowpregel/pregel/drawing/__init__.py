"""Drawings of a program: its nodes and edges, and what a run did with them.

A `Graph` and a `RunDrawing` are plain data that draw themselves: as Mermaid, as a list or
a table for a terminal, and with Graphviz as SVG and PNG.
"""

from flowpregel.pregel.drawing.graph import END, START, Edge, Graph, NodeShape, graph_of
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
