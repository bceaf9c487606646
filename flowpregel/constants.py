"""The names that mark places in a graph; they are defined in `flowpregel.graph`."""

from flowpregel._core.records import TASKS
from flowpregel.graph.names import END, START, TAG_HIDDEN, TAG_NOSTREAM

__all__ = ["END", "START", "TAG_HIDDEN", "TAG_NOSTREAM", "TASKS"]
