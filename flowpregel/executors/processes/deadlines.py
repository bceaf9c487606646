"""What is due when: timeouts of tasks, and the kill after the grace period."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count


class Deadlines:
    """Calls back when it is time. Times are monotonic seconds.

    A deadline that no longer matters is not taken back: its callback sees that
    there is nothing to do.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._lock = threading.Lock()

    def add(self, when: float, action: Callable[[float], None]) -> bool:
        """Call *action* with the time at *when*; return whether it is the next one due."""
        with self._lock:
            heapq.heappush(self._heap, (when, next(self._order), action))
            return self._heap[0][0] == when

    def run(self, now: float) -> float | None:
        """Call what is due; return when the next one is."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            with self._lock:
                if not heap or heap[0][0] > now:
                    break
                action = heapq.heappop(heap)[2]
            action(now)
        return heap[0][0] if heap else None
