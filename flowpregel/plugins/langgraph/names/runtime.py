"""LangGraph's server, which flowpregel does not have, and LangGraph's version."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, Protocol

from flowpregel.errors import ConfigurationError, FlowPregelError
from flowpregel.runtime import Runtime

__all__ = [
    "DEFAULT_RUNTIME",
    "BaseUser",
    "RemoteException",
    "RemoteGraph",
    "ServerInfo",
    "__version__",
]

DEFAULT_RUNTIME: Final[Runtime[Any]] = Runtime()
"""A runtime outside of a run."""


class BaseUser(Protocol):
    """A user of LangGraph's server."""

    @property
    def identity(self) -> str:
        """The name of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The server that runs a graph. In flowpregel, `Runtime.server_info` is None."""

    assistant_id: str
    graph_id: str
    user: BaseUser | None = None


class RemoteGraph:
    """A graph on LangGraph's server, which flowpregel cannot call.

    Packages compare the class of a graph with this one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigurationError(
            "flowpregel cannot call a graph on LangGraph's server: call the server "
            "with its own client, langgraph_sdk, in a node"
        )


class RemoteException(FlowPregelError):
    """An error of a graph on a server; flowpregel never raises it."""


def _langgraph_version() -> str:
    try:
        return metadata.version("langgraph")
    except metadata.PackageNotFoundError:
        return "1.2"


__version__ = _langgraph_version()
"""The installed version of LangGraph, or the one that flowpregel follows."""
