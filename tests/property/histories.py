"""What two runs of a program must have in common, whatever happened to them on the
way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowpregel._core.commands import Command
from flowpregel._core.program import Options, Program
from flowpregel._core.records import INTERRUPT, Address, Durability, Saved
from flowpregel._core.run_state import load_state
from flowpregel.channels.base import BaseChannel
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from tests.crash_driver import Crash, CrashDriver, Crashed, Schedule, shuffled
from tests.strategies import Down, Faults, Recipe


class Thread:
    """One thread of a recipe's program, run to its end through crashes, failures and
    questions.
    """

    def __init__(
        self, recipe: Recipe, durability: Durability, seed: int | None
    ) -> None:
        self.recipe = recipe
        self.faults = Faults(down=set(recipe.down))
        self.saver = InMemorySaver()
        self.program = recipe.build(self.faults).program
        self.driver = CrashDriver(
            self.program,
            self.saver,
            Options(durability=durability),
            schedule=Schedule()
            if seed is None
            else Schedule(order=shuffled(seed), together=1 + seed % 3),
        )
        self.performed = 0
        """How many effects all of its runs have had."""

    def to_its_end(self, crashes: Iterator[int] | None = None) -> Thread:
        """Run until nothing is left to do, and return itself.

        Args:
            crashes: Counting effects over all runs of the thread, those before
                which a run is dropped.
        """
        crashes = crashes or iter(())
        at = next(crashes, None)
        asked = self.recipe.given
        while True:
            crash = None if at is None else Crash(before=at - self.performed)
            try:
                result = self.driver.run(asked, crash=crash)
            except Crashed:
                at = next(crashes, None)
                asked = self.driver.again(self.recipe.given)
            except Down:
                self.faults.down.clear()
                asked = self.driver.again(self.recipe.given)
            else:
                if not result.paused:
                    return self
                asked = Command(
                    resume={item.id: item.value["index"] for item in result.interrupts}
                )
            finally:
                self.performed += len(self.driver.effects)

    def history(self) -> list[Any]:
        """Return what its checkpoints hold, newest first."""
        return history_of(self.program, self.saver)


def history_of(
    program: Program, saver: BaseCheckpointSaver, thread_id: str = "t"
) -> list[Any]:
    """Return what every checkpoint of a thread holds, newest first, without ids and
    times.
    """
    return [shape_of(program, saved) for saved in saver.history(Address(thread_id))]


def shape_of(program: Program, saved: Saved) -> dict[str, Any]:
    """Return what one checkpoint holds, without ids and times: versions by rank
    alone.
    """
    checkpoint = saved.checkpoint
    versions = checkpoint.channel_versions
    ranks = {
        version: rank for rank, version in enumerate(sorted(set(versions.values())))
    }
    return {
        "step": checkpoint.step,
        "source": checkpoint.source,
        "values": values_of(load_state(program, saved).channels),
        "changed": sorted(checkpoint.changed),
        "updated": checkpoint.updated_channels,
        "versions": {name: ranks[version] for name, version in versions.items()},
        "seen": {
            node: {
                name: (version > versions[name]) - (version < versions[name])
                for name, version in seen.items()
            }
            for node, seen in checkpoint.versions_seen.items()
            if node != INTERRUPT
        },
    }


def values_of(channels: Mapping[str, BaseChannel[Any, Any]]) -> dict[str, Any]:
    """Return the values of those of *channels* that hold one."""
    return {name: item.get() for name, item in channels.items() if item.is_available()}
