"""The names that a graph gives to what its user does not name."""

from __future__ import annotations

from typing import Final

START: Final = "__start__"
"""Where a graph begins: the node that takes the input in."""
END: Final = "__end__"
"""Where a graph ends: nothing runs after it."""
ROOT: Final = "__root__"
"""The channel of a state that is one plain value."""
TAG_HIDDEN: Final = "langsmith:hidden"
"""Marks a node that streams and breakpoints pass over."""
TAG_NOSTREAM: Final = "nostream"
"""Marks what LangChain's models should not stream; kept for programs that move over."""
DEFAULT_HANDLER: Final = "__default_error_handler__"


def trigger_of(node: str) -> str:
    """Return the channel that makes *node* run."""
    return f"branch:to:{node}"


def join_of(starts: tuple[str, ...], end: str) -> str:
    """Return the channel that makes *end* run when all of *starts* have."""
    return f"join:{'+'.join(starts)}:{end}"


def handler_of(node: str) -> str:
    """Return the name of the hidden node that handles the failure of *node*."""
    return f"__error_handler__{node}"
