"""``python -m tests.soak.cluster --engine dask --minutes 60``: two programs on one
cluster under random faults.

The cluster has three machines, which are network namespaces. Machines die, leave, come
back, are cut off or get a slow link; programs are stopped and killed. Values have from
1 B to 32 MB. Each result must be right and each call recorded once, no program may
hang, and in the end the cluster must be as it was before. The exit status is 1 if a
promise did not hold. Needs root, iproute2 and the extra ``dask`` or ``ray``.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster import network
from tests.cluster.dask_engine import DaskCluster
from tests.cluster.deaths import tasks_left
from tests.cluster.ray_engine import RayCluster

ENGINES: Final = {"dask": DaskCluster, "ray": RayCluster}
PROGRAMS: Final = 2
PAUSE: Final = 4.0
"""The mean seconds between two faults of machines, and between two of programs."""
LONGEST_FAULT: Final = 20.0
SLOW: Final = "80mbit"
FAST: Final = "400mbit"
PATIENCE: Final = 300.0
"""Seconds in which a program must end its run when all faults are over."""


@dataclass
class Program:
    """A program of the soak, which is started again when it was killed."""

    url: str
    folder: Path
    seed: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.start()

    def start(self) -> None:
        """Start the program."""
        words = ("-m", "tests.soak.cluster_program")
        self.process = network.start(
            None, *words, self.url, str(self.folder), str(self.seed), log=self.log
        )

    @property
    def log(self) -> Path:
        """The file with what the program has printed."""
        return self.folder / "log"

    def lines(self) -> list[str]:
        """Return the notes of the program."""
        return (self.folder / "notes").read_text().splitlines()


class Soak:
    """The cluster, the programs, and the faults under way.

    Args:
        cluster: A cluster on the namespaces.
        programs: The programs that use it.
        seed: The seed of the faults.
    """

    def __init__(self, cluster: Any, programs: Sequence[Program], seed: int) -> None:
        self.cluster = cluster
        self.programs = programs
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []
        self._under_way: dict[str, Callable[[], object]] = {}
        """The functions that end the faults under way, by what is faulty."""

    def run(self, seconds: float) -> None:
        """Do one fault after the other for some seconds, and then end all of them."""
        end = time.monotonic() + seconds
        turns = {"machine": 0.0, "program": time.monotonic() + PAUSE}
        while time.monotonic() < end:
            for what in turns:
                if time.monotonic() >= turns[what]:
                    turns[what] = time.monotonic() + self._turn(what)
            self._look_at_programs()
            time.sleep(0.1)
        self.heal()

    def heal(self) -> None:
        """End all faults."""
        while self._under_way:
            _, heal = self._under_way.popitem()
            heal()

    def _turn(self, what: str) -> float:
        """End the fault of a machine or a program, or begin one, and return the seconds
        until the next turn.
        """
        heal = self._under_way.pop(what, None)
        if heal is not None:
            heal()
            return self.chance.expovariate(1 / PAUSE)
        faults = MACHINE_FAULTS if what == "machine" else PROGRAM_FAULTS
        fault = self.chance.choice(faults)
        self.faults[fault.__name__] += 1
        self._under_way[what] = fault(self)
        return self.chance.uniform(1.0, LONGEST_FAULT)

    def _look_at_programs(self) -> None:
        """Note the programs that have ended, and start them again."""
        for program in self.programs:
            status = program.process.poll()
            if status is not None and status != -signal.SIGKILL:
                tail = program.log.read_text()[-500:]
                self.problems.append(f"a program ended with {status}: {tail}")
                program.start()

    # ------------------------------------------------ faults; each returns its end

    def machine_dies(self) -> Callable[[], object]:
        name = self.chance.choice(network.NAMES)
        network.kill_all_on(name)
        return lambda: self._restart(name)

    def machine_leaves(self) -> Callable[[], object]:
        name = self.chance.choice(network.NAMES)
        self.cluster.retire(name)
        return lambda: self._restart(name)

    def machine_cut_off(self) -> Callable[[], object]:
        name = self.chance.choice(network.NAMES)
        network.cut(name)

        def mend() -> None:
            network.mend(name)
            # An engine ends a machine that was silent for too long.
            self._restart(name)

        return mend

    def machine_gets_slow(self) -> Callable[[], object]:
        name = self.chance.choice(network.NAMES)
        network.slow_down(name, SLOW)
        return lambda: network.slow_down(name, FAST)

    def program_stops(self) -> Callable[[], object]:
        program = self.chance.choice(self.programs)
        program.process.send_signal(signal.SIGSTOP)
        return lambda: program.process.send_signal(signal.SIGCONT)

    def program_dies(self) -> Callable[[], object]:
        program = self.chance.choice(self.programs)
        program.process.kill()
        program.process.wait()
        return program.start

    def _restart(self, name: str) -> None:
        """Start the engine's process on a machine again, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.cluster.workers[name].wait(3)
        self._start_if_ended(name)

    def _start_if_ended(self, name: str) -> None:
        if self.cluster.workers[name].poll() is not None:
            self.cluster.workers[name] = self.cluster.start_worker(name)

    # ------------------------------------------------ the end

    def finish(self) -> None:
        """Let the programs end their runs, and note what is wrong."""
        for program in self.programs:
            (program.folder / "stop").touch()
        for program in self.programs:
            try:
                status = program.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                program.process.kill()
                status = f"{PATIENCE:.0f} s of waiting"
            if status:
                tail = program.log.read_text()[-500:]
                self.problems.append(f"a program ended with {status}: {tail}")
            for line in program.lines():
                if "VIOLATION" in line:
                    self.problems.append(line)

    def report(self) -> None:
        """Print what the programs have done and which faults there were."""
        for program in self.programs:
            lines = program.lines()
            done = sum(" done in " in line for line in lines)
            again = [line for line in lines if " again: " in line]
            print(f"{done} runs done, {len(again)} runs begun again without a cluster")
            for line in again:
                print("  ", line)
            if not done:
                self.problems.append("a program has ended no run")
        print(dict(self.faults), flush=True)

    def compare(self, before: dict[str, Any]) -> None:
        """Note what the programs have left in the cluster.

        Args:
            before: The state of the cluster before the first program began.
        """

        def is_as_before() -> bool:
            # A machine may notice late that its engine has given it up, and end then.
            for name in network.NAMES:
                self._start_if_ended(name)
            return self.cluster.state() == before and not tasks_left()

        try:
            network.wait_for(is_as_before, 60, "the cluster is as before")
        except TimeoutError:
            state = self.cluster.state()
            changes = [
                f"{name}: {before[name]!r}, now {state[name]!r}"
                for name in before
                if before[name] != state[name]
            ]
            self.problems += [*changes, *tasks_left()]


MACHINE_FAULTS: Final = (
    Soak.machine_dies,
    Soak.machine_leaves,
    Soak.machine_cut_off,
    Soak.machine_gets_slow,
)
PROGRAM_FAULTS: Final = (
    Soak.program_stops,
    Soak.program_dies,
)


def soak(engine: str, folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the soak on an engine, print what happened, and return what is wrong."""
    with network.machines(), ENGINES[engine](folder) as cluster:
        before = cluster.state()
        programs = [
            Program(
                cluster.url, folder / f"program-{number}", seed + number * 1_000_000
            )
            for number in range(PROGRAMS)
        ]
        soaking = Soak(cluster, programs, seed)
        try:
            soaking.run(seconds)
            soaking.finish()
            soaking.report()
            soaking.compare(before)
        finally:
            for program in programs:
                program.process.kill()
    return soaking.problems


def main(words: Sequence[str] | None = None) -> int:
    """Run the soak, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.cluster")
    parser.add_argument("--engine", choices=ENGINES, default="dask")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        problems = soak(
            options.engine, Path(folder), options.minutes * 60, options.seed
        )
    for problem in problems[:20]:
        print(f"VIOLATION: {problem}")
    print(f"{len(problems)} violations")
    return min(1, len(problems))


if __name__ == "__main__":
    sys.exit(main())
