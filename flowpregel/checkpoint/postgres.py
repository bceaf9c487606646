"""LangGraph's import path of the saver that `flowpregel.plugins.postgres` defines."""

from flowpregel.plugins.postgres import PostgresSaver

__all__ = ["PostgresSaver"]
