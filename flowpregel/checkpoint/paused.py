"""The paused runs of a store, which `flowpregel work` neither begins nor resumes.

They are in one record in ``meta``, as JSON. A pause is a request by a person, and not a
state of a run: a paused run has the same checkpoints, lease and status as before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from flowpregel.checkpoint.base import FLOW

PAUSED: Final = b"paused"
"""The key in ``meta`` of the record of paused runs."""


@dataclass(frozen=True, slots=True)
class PausedRuns:
    """The paused runs: all runs, the runs of some flows, and single runs.

    Example:
        >>> paused = PausedRuns(flows=frozenset({"jobs:study"}))
        >>> paused.reason("wing", {"flow": "jobs:study"})
        'flow'
        >>> PausedRuns.of(paused.encoded()) == paused
        True
    """

    everything: bool = False
    """True if all runs of the store are paused."""
    flows: frozenset[str] = frozenset()
    """The flows whose runs are paused, as ``MODULE:FLOW``."""
    threads: frozenset[str] = frozenset()
    """The ids of the threads whose runs are paused one by one, not with their flow or
    the whole store.
    """

    @classmethod
    def of(cls, data: bytes | None) -> Self:
        """Return the paused runs in the record of a store, or no paused runs if there
        is no record.

        Args:
            data: The record, or None.
        """
        if data is None:
            return cls()
        fields = json.loads(data)
        return cls(
            everything=bool(fields["everything"]),
            flows=frozenset(fields["flows"]),
            threads=frozenset(fields["threads"]),
        )

    def encoded(self) -> bytes:
        """Return the record for a store."""
        fields = {
            "everything": self.everything,
            "flows": sorted(self.flows),
            "threads": sorted(self.threads),
        }
        return json.dumps(fields).encode()

    def reason(self, thread_id: str, metadata: Mapping[str, Any]) -> str:
        """Return the reason why a run is paused: ``all``, ``flow`` or ``run``, or an
        empty string if the run is not paused.

        Args:
            thread_id: The thread of the run.
            metadata: The metadata of the thread's newest checkpoint.
        """
        if self.everything:
            return "all"
        flow = metadata.get(FLOW)
        # The user's own metadata may have a value of any type under this key.
        if isinstance(flow, str) and flow in self.flows:
            return "flow"
        return "run" if thread_id in self.threads else ""

    def with_runs(
        self,
        threads: Collection[str],
        flows: Collection[str] = (),
        *,
        everything: bool = False,
    ) -> PausedRuns:
        """Return these paused runs and more.

        Args:
            threads: The threads of single runs.
            flows: The flows, as ``MODULE:FLOW``.
            everything: Whether to add all runs of the store.

        Example:
            >>> sorted(PausedRuns().with_runs(["wing", "hull"]).threads)
            ['hull', 'wing']
        """
        return PausedRuns(
            everything=self.everything or everything,
            flows=self.flows.union(flows),
            threads=self.threads.union(threads),
        )

    def without_runs(
        self,
        threads: Collection[str],
        flows: Collection[str] = (),
        *,
        everything: bool = False,
    ) -> PausedRuns:
        """Return these paused runs except some.

        Args:
            threads: The threads of single runs.
            flows: The flows, as ``MODULE:FLOW``.
            everything: Whether to return no runs at all.

        Example:
            >>> PausedRuns().with_runs(["wing"]).without_runs(["wing"]) == PausedRuns()
            True
        """
        if everything:
            return PausedRuns()
        return PausedRuns(
            everything=self.everything,
            flows=self.flows.difference(flows),
            threads=self.threads.difference(threads),
        )
