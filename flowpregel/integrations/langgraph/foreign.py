"""LangGraph's savers as ours; defined where `checkpointer=` can reach it, below."""

from flowpregel.checkpoint.foreign import ForeignSaver, as_saver

__all__ = ["ForeignSaver", "as_saver"]
