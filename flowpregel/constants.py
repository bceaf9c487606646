"""The names with a special meaning in graphs, such as `START` and `END`; they are
defined in `flowpregel.pregel`.
"""

from flowpregel._core.records import TASKS
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.node import TAG_HIDDEN, TAG_NOSTREAM

__all__ = ["END", "START", "TAG_HIDDEN", "TAG_NOSTREAM", "TASKS"]
