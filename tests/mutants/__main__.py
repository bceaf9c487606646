"""Change the code in one place at a time, and count how many changes no test notices.

``python -m tests.mutants`` (``tox -e mutants``) copies the tree, draws a sample of
mutants of each room at random, and runs the room's tests against each. Mutants are made
by Cosmic Ray. A room of which more than a tenth of the mutants live fails the command.
A line whose mutants all mean the same as the line itself is left out by a comment ``#
no mutant: REASON``.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

from tests.mutants.rooms import ROOMS, MutatedRoom

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    "flowpregel",
    "tests",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
    "tox.ini",
)
NO_MUTANT: Final = "# no mutant:"
OPERATORS: Final = frozenset(
    {
        "AddNot",
        "NumberReplacer",
        "ReplaceAndWithOr",
        "ReplaceBinaryOperator_Add_Sub",
        "ReplaceBinaryOperator_Mul_Add",
        "ReplaceBinaryOperator_Sub_Add",
        "ReplaceBreakWithContinue",
        "ReplaceComparisonOperator_Eq_NotEq",
        "ReplaceComparisonOperator_Gt_GtE",
        "ReplaceComparisonOperator_GtE_Gt",
        "ReplaceComparisonOperator_In_NotIn",
        "ReplaceComparisonOperator_Is_IsNot",
        "ReplaceComparisonOperator_IsNot_Is",
        "ReplaceComparisonOperator_Lt_LtE",
        "ReplaceComparisonOperator_LtE_Lt",
        "ReplaceComparisonOperator_NotEq_Eq",
        "ReplaceComparisonOperator_NotIn_In",
        "ReplaceContinueWithBreak",
        "ReplaceFalseWithTrue",
        "ReplaceOrWithAnd",
        "ReplaceTrueWithFalse",
        "ZeroIterationForLoop",
    }
)
"""The operators whose mutants mean something else; most others of a comparison mean the
same.
"""
MOST: Final = 9
"""Greater numbers are bounds that were chosen: the program is as good with the next
one.
"""


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__
    )
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--sample", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument(
        "--floor", type=float, default=0.9, help="the least share to be noticed"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run the quick tests alone"
    )
    parser.add_argument(
        "--only", default="", help="mutate only files whose path holds this"
    )
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(ROOMS):
        parser.error(
            f"unknown rooms: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}"
        )
    print(f"--seed {options.seed}")
    is_good = True
    with tempfile.TemporaryDirectory(prefix="flowpregel-mutants-") as folder:
        copy_tree(Path(folder))
        with chdir(folder):
            os.environ["PYTHONPATH"] = folder
            for name in options.rooms or ROOMS:
                # A generator of its own: the sample of a room does not depend on the
                # others.
                chance = random.Random(f"{options.seed} {name}")
                mutants = [
                    m
                    for m in mutants_of(ROOMS[name])
                    if options.only in str(m.module_path)
                ]
                sample = chance.sample(mutants, min(options.sample, len(mutants)))
                is_good &= examine(name, sample, options.floor, is_quick=options.quick)
    return not is_good


def copy_tree(folder: Path) -> None:
    """Copy what the tests need to *folder*, so that no mutant is ever in the
    checkout.
    """
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
            )
        else:
            shutil.copy(source, folder / name)


def mutants_of(room: MutatedRoom) -> list[MutationSpec]:
    """Return the mutants of the files of *room*, in the order of their places."""
    files = sorted(
        path for pattern in room.files for path in Path("flowpregel").glob(pattern)
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(Path(folder, "mutants.sqlite")) as database,
    ):
        init(files, database, {})
        specs = [spec for item in database.work_items for spec in item.mutations]
    lines = {path: path.read_text("utf-8").splitlines() for path in files}
    chosen = [spec for spec in specs if is_meant(spec, lines[spec.module_path])]
    return sorted(
        chosen, key=lambda spec: (spec.module_path, spec.start_pos, spec.operator_name)
    )


def is_meant(spec: MutationSpec, lines: Sequence[str]) -> bool:
    """Return whether a test can be asked to notice a mutant of a file with these
    *lines*.
    """
    operator = spec.operator_name.removeprefix("core/")
    row, start = spec.start_pos
    line = lines[row - 1]
    # What the decorator of a record says prevents mistakes: it changes no program that
    # works.
    if (
        operator not in OPERATORS
        or NO_MUTANT in line
        or line.lstrip().startswith("@dataclass(")
    ):
        return False
    number = line[start : spec.end_pos[1]]
    return operator != "NumberReplacer" or (number.isdigit() and int(number) <= MOST)


def examine(
    name: str, sample: Sequence[MutationSpec], floor: float, *, is_quick: bool = False
) -> bool:
    """Test each mutant of *sample*, print those that live, and return whether few do.

    If *is_quick*, only the quick tests are run.
    """
    began = time.monotonic()
    stages: list[Stage] = []
    for command in islice(commands_of(ROOMS[name]), 1 if is_quick else None):
        stage = Stage.of(command)
        if stage is None:
            print(f"{name}: the tests fail without a mutant")
            return False
        stages.append(stage)
    seconds = " and ".join(f"{stage.seconds:.0f}" for stage in stages)
    print(f"{name}: the tests take {seconds} s", flush=True)
    count = killed = 0
    for spec in sample:
        result = tested(spec, stages)
        if result.test_outcome is None:
            # It could not be made.
            continue
        count += 1
        if result.test_outcome == TestOutcome.SURVIVED:
            print(f"lives: {spec.operator_name}\n{result.diff}", flush=True)
        else:
            killed += 1
    share = killed / count if count else 1.0
    minutes = (time.monotonic() - began) / 60
    print(
        f"{name}: {killed} of {count} mutants noticed ({share:.0%}; floor {floor:.0%}) "
        f"in {minutes:.0f} minutes",
        flush=True,
    )
    return share >= floor


def commands_of(room: MutatedRoom) -> Iterator[list[str]]:
    """Yield the commands that run the tests of *room*, the quickest first."""
    pytest = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    # Most mutants are decided here in less time than other processes would take to
    # start.
    yield [*pytest, "-p", "no:xdist", "-m", "not slow", *paths_of(room.quick)]
    if room.slow:
        yield [*pytest, "-n2", *paths_of(room.slow)]


def paths_of(tests: Iterable[str]) -> list[str]:
    """Return the paths of *tests* in the tree."""
    return [str(Path("tests", path)) for path in tests]


class Stage(NamedTuple):
    """Tests that a mutant has to live through."""

    command: str
    seconds: float
    """How long they take without a mutant."""

    @classmethod
    def of(cls, command: list[str]) -> Stage | None:
        """Run *command* without a mutant; None: its tests fail, and their output is
        printed.
        """
        began = time.monotonic()
        baseline = subprocess.run(command, capture_output=True, text=True)
        if baseline.returncode:
            print(baseline.stdout)
            return None
        return cls(shlex.join(command), time.monotonic() - began)

    @property
    def timeout(self) -> float:
        """Seconds after which a mutant counts as noticed: it has made the tests
        hang.
        """
        return 30 + 3 * self.seconds


def tested(spec: MutationSpec, stages: Iterable[Stage]) -> WorkResult:
    """Return the result of the first of *stages* that notices a mutant, or of the
    last.
    """
    for stage in stages:
        result = mutate_and_test([spec], stage.command, stage.timeout)
        if result.test_outcome != TestOutcome.SURVIVED:
            break
    return result


if __name__ == "__main__":
    sys.exit(main())
