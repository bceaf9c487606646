"""`Pregel`: a compiled graph, to be run, looked at and edited."""

from __future__ import annotations

from flowpregel.pregel.running import Running


class Pregel(Running):
    """..."""
