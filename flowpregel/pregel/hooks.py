"""Tells the handlers in ``config["callbacks"]`` that a run started, and how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from flowpregel.pregel.config import ParsedConfig

_log: Final = logging.getLogger("flowpregel")


@contextmanager
def run_hooks(
    config: ParsedConfig, given: Any, result: Callable[[], Any], run_id: str | None
) -> Iterator[None]:
    """Call ``on_chain_start``, and ``on_chain_end`` or ``on_chain_error``, of each handler.

    They are LangChain's methods, of which a handler needs no more than it wants. They are called
    where the program is, for the outermost run alone; one that fails is logged.

    Args:
        config: Names the handlers.
        given: The input of the run.
        result: Returns its output, once it has ended.
        run_id: The id of the run.
    """
    known = {"run_id": run_id, "parent_run_id": None, "tags": config.shown["tags"]}

    def tell(method: str, *args: Any, **more: Any) -> None:
        for handler in config.callbacks:
            try:
                if hasattr(handler, method):
                    getattr(handler, method)(*args, **known, **more)
            except Exception:  # noqa: BLE001 - a run does not depend on who watches it
                _log.exception("%s of a callback failed", method)

    tell("on_chain_start", None, given, metadata=config.metadata, name=config.run_name)
    try:
        yield
    except BaseException as error:
        tell("on_chain_error", error)
        raise
    tell("on_chain_end", result())
