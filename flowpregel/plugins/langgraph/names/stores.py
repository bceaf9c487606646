"""Functions that LangGraph's stores import from the module of their base class.

Under the hook, that base class is flowpregel's `BaseStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from flowpregel.store.base import (
    NOT_PROVIDED,
    InvalidNamespaceError,
    ListNamespacesOp,
    NotProvided,
    Op,
    SearchOp,
    TTLConfig,
)

__all__ = [
    "ensure_embeddings",
    "get_text_at_path",
    "minutes_to_live",
    "refreshes",
    "require_labels",
    "require_namespace",
    "require_namespaces",
    "tokenize_path",
]


def require_labels(namespace: Sequence[Any]) -> None:
    """Raise `InvalidNamespaceError` unless *namespace* consists of valid labels."""
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} of namespace {tuple(namespace)!r} cannot be used; a "
                "label is a text that is not empty and has no '.' and no NUL in it"
            )


def require_namespace(namespace: Sequence[Any]) -> None:
    """Raise `InvalidNamespaceError` unless a value can be put into *namespace*."""
    require_labels(namespace)
    if not namespace or namespace[0] == "langgraph":
        raise InvalidNamespaceError(
            f"namespace {tuple(namespace)!r} cannot be used; it needs at least one "
            "label, the first other than 'langgraph'"
        )


def require_namespaces(op: Op) -> None:
    """Raise `InvalidNamespaceError` unless the namespaces in an operation are valid."""
    if isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            require_labels(condition.path)
    elif isinstance(op, SearchOp):
        require_labels(op.namespace_prefix)
    else:
        require_labels(op.namespace)


def refreshes(ttl_config: TTLConfig | None, refresh_ttl: bool | None = None) -> bool:
    """Return whether reading an item restarts its time to live."""
    if refresh_ttl is not None:
        return refresh_ttl
    return bool((ttl_config or {}).get("refresh_on_read", True))


def minutes_to_live(
    ttl_config: TTLConfig | None, ttl: float | NotProvided | None = NOT_PROVIDED
) -> float | None:
    """Return the time to live, in minutes, of an item that is put."""
    if isinstance(ttl, NotProvided):
        return (ttl_config or {}).get("default_ttl")
    return ttl


def _embedding_function(name: str) -> Any:
    """Return the function *name* of LangGraph, which packages use for indexes of a
    store, or None if LangGraph is not installed.
    """
    try:
        return getattr(import_module("langgraph.store.base.embed"), name)
    except ImportError:
        return None


ensure_embeddings: Final = _embedding_function("ensure_embeddings")
get_text_at_path: Final = _embedding_function("get_text_at_path")
tokenize_path: Final = _embedding_function("tokenize_path")
