"""The code of nodes, pickled once for each run that uses them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from flowpregel._core.records import Node
from flowpregel.executors.processes.messages import pack_node
from flowpregel.executors.processes.payload import digest_of

_MOST: Final = 1024


class Codebook:
    """Remembers what nodes look like pickled.

    A run sees the code as it was when the run first used it: what a notebook
    changes afterwards, its next run sees.
    """

    def __init__(self) -> None:
        # The node is kept beside its code, so that its id names nothing else meanwhile.
        self._codes: OrderedDict[tuple[int, str | None], tuple[Node, bytes, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def look_up(self, node: Node, run_id: str | None) -> tuple[bytes, bytes]:
        """Return the digest and the code of *node*.

        Raises:
            TaskSerializationError: It cannot be pickled.
        """
        key = (id(node), run_id)
        with self._lock:
            entry = self._codes.get(key)
            if entry is not None:
                self._codes.move_to_end(key)
                return entry[1], entry[2]
        code = pack_node(node)
        digest = digest_of(code)
        with self._lock:
            self._codes[key] = (node, digest, code)
            if len(self._codes) > _MOST:
                self._codes.popitem(last=False)
        return digest, code
