"""Our durable store as a LangGraph checkpointer: ``graph.compile(checkpointer=LMDBSaver(path))``.

Importing this module imports LangGraph, which has to be installed.
"""

from __future__ import annotations

import os
from typing import Any, Self

from flowpregel.checkpoint.lmdb import LMDBSaver as OurSaver
from flowpregel.integrations.langgraph.saver import SaverAdapter


class LMDBSaver(SaverAdapter):
    """Keeps the checkpoints of LangGraph's graphs in a folder on disk.

    Args:
        path: The folder; made if it is not there.
        **settings: What `flowpregel.checkpoint.lmdb.LMDBSaver` takes.

    Raises:
        StoreError: It cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder + "/runs.lmdb") as saver:
        ...     saver.get_tuple({"configurable": {"thread_id": "unknown"}}) is None
        True
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        super().__init__(OurSaver(path, **settings))

    def close(self) -> None:
        """Close the store; may be called again."""
        self.saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
