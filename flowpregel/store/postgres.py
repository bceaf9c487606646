"""LangGraph's import path of the store that `flowpregel.plugins.postgres` defines."""

from flowpregel.plugins.postgres import PostgresStore

__all__ = ["PostgresStore"]
