"""The line of tasks that wait for a worker: children before their parents' siblings.

A task that calls another holds its worker until the answer is there. Were the
line first come, first served, a thousand such parents would hold a thousand
workers before the first child had its turn. So the deepest tasks go first, and
a few workers are enough.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from flowpregel._core.records import Node
from flowpregel.executors.processes.slot import Flight, Party

_MOST: Final = 1024


class Line:
    """Flights that wait, by how many tasks wait for them in turn."""

    def __init__(self) -> None:
        self._by_depth: dict[int, deque[Flight]] = {}
        self.count = 0
        """How many wait."""

    def add(self, flight: Flight) -> None:
        """Let *flight* wait behind those of its depth."""
        self.add_all((flight,))

    def add_all(self, flights: Collection[Flight]) -> None:
        """Let each of *flights* wait behind those of its depth."""
        party: Party | None = None
        queue: deque[Flight] | None = None
        for flight in flights:
            if queue is None or flight.party is not party:
                party = flight.party
                queue = self._queue(party.depth)
            queue.append(flight)
        self.count += len(flights)

    def add_first(self, flight: Flight) -> None:
        """Let *flight* wait before those of its depth."""
        self._queue(flight.party.depth).appendleft(flight)
        self.count += 1

    def _queue(self, depth: int) -> deque[Flight]:
        queue = self._by_depth.get(depth)
        if queue is None:
            queue = self._by_depth[depth] = deque()
        return queue

    def take(
        self, most: int, least: int, worth: float, cost: Callable[[Party], float]
    ) -> list[Flight]:
        """Take out those whose turn it is.

        Args:
            most: How many at most.
            least: How many at least, whatever they cost.
            worth: What they may cost together.
            cost: Tells what one of a party costs.
        """
        group: list[Flight] = []
        party, each, total = None, 0.0, 0.0
        while self._by_depth:
            depth = max(self._by_depth)
            queue, before = self._by_depth[depth], len(group)
            for flight in islice(queue, most - before):
                if flight.party is not party:
                    party = flight.party
                    each = cost(party)
                total += each
                if total > worth and len(group) >= least:
                    break
                group.append(flight)
            for _ in range(len(group) - before):
                queue.popleft()
            if queue:
                break
            del self._by_depth[depth]
        self.count -= len(group)
        return group

    def remove(self, flight: Flight) -> None:
        """Take out *flight*, which waits."""
        depth = flight.party.depth
        queue = self._by_depth[depth]
        queue.remove(flight)
        if not queue:
            del self._by_depth[depth]
        self.count -= 1

    def all(self) -> list[Flight]:
        """Return everyone; without the pool's lock somebody may be missing, or gone."""
        return [flight for queue in tuple(self._by_depth.values()) for flight in tuple(queue)]

    def take_all(self) -> list[Flight]:
        """Take out everyone."""
        flights = self.all()
        self._by_depth.clear()
        self.count = 0
        return flights


class CalledNodes:
    """The nodes that workers' tasks have called, one object for each code and depth.

    How deep a task is nested is told by the object that is its node: it was made
    here, for calls from tasks of one depth.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[tuple[bytes, int], Node] = OrderedDict()
        self._depths: dict[int, int] = {}

    def find(self, digest: bytes, depth: int) -> Node | None:
        """Return the node of that code, for calls from tasks of *depth* - 1."""
        return self._nodes.get((digest, depth))

    def keep(self, digest: bytes, depth: int, node: Node) -> None:
        """Keep *node*; the oldest are forgotten."""
        self._nodes[digest, depth] = node
        self._depths[id(node)] = depth
        if len(self._nodes) > _MOST:
            _, oldest = self._nodes.popitem(last=False)
            self._depths.pop(id(oldest), None)

    def depth_of(self, node: Node) -> int:
        """Return how many tasks wait for a task of *node*, each for the next."""
        return self._depths.get(id(node), 0)
