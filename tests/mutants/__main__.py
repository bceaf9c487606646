"""Change the code in one place at a time, and count how many changes no test notices.

``python -m tests.mutants`` (``tox -e mutants``) copies the tree, draws a sample of
mutants of each room at random, and runs the room's tests against each. Mutants are made
by Cosmic Ray. A room of which more than a tenth of the mutants live fails the command.
A comment ``# no mutant: REASON`` on a line, or on the line above it, excludes the line.
It is for lines that no test can protect, because every mutant of the line behaves like
the line itself. REASON is a sentence that explains why.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome
from coverage import CoverageData

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
"""The beginning of a comment that excludes a line. The comment is on the line itself or
on the line above; after the colon it explains why no change of the line matters.
"""
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
CONSTANT: Final = re.compile(r"_?[A-Z_]+(: Final)? = ")
"""The definition of a constant, whose number was chosen as well."""
MOST_CHOSEN: Final = 100
"""Of more tests that execute a mutant, every second or third is run first."""
UNIT_TESTS: Final = "tests/unit/"
"""The beginning of the names of tests that are fast enough to be all run first."""


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
    marked = f"{lines[row - 2]} {line}" if row > 1 else line
    if operator not in OPERATORS or NO_MUTANT in marked:
        return False
    # What the decorator of a record says changes no program that works.
    if line.lstrip().startswith("@dataclass("):
        return False
    if operator == "NumberReplacer" and CONSTANT.match(line):
        return False
    # To import more, or nothing for a type checker, changes no program.
    if line.startswith("if TYPE_CHECKING"):
        return False
    # The check of `zip` is for programs that are wrong.
    if operator == "ReplaceTrueWithFalse" and line[:start].endswith("strict="):
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
    room = ROOMS[name]
    tests = QuickTests.of(room)
    seconds = (
        None
        if is_quick or not room.slow
        else seconds_without_mutant(slow_command(room))
    )
    if tests is None or (seconds is None and not is_quick and room.slow):
        print(f"{name}: the tests fail without a mutant")
        return False
    print(
        f"{name}: the tests take {tests.seconds:.0f} s and {seconds or 0:.0f} s",
        flush=True,
    )
    count = killed = 0
    for position, spec in enumerate(sample, 1):
        attempts = [*tests.commands_for(spec)]
        if seconds is not None:
            attempts.append((shlex.join(slow_command(room)), timeout_of(seconds)))
        for command, timeout in attempts:
            result = mutate_and_test([spec], command, timeout)
            if result.test_outcome != TestOutcome.SURVIVED:
                break
        if result.test_outcome is None:
            # It could not be made.
            continue
        count += 1
        if result.test_outcome == TestOutcome.SURVIVED:
            print(f"{position} lives: {spec.operator_name}\n{result.diff}", flush=True)
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


# ---------------------------------------------------------------- which tests


def pytest_command(tests: Iterable[str], *options: str) -> list[str]:
    """Return the command that runs *tests* up to the first that fails."""
    return [
        sys.executable,
        "-m",
        "pytest",
        "-qx",
        "-p",
        "no:cacheprovider",
        # The same examples for each mutant: what is noticed is no chance.
        "--hypothesis-profile=ci",
        *options,
        *tests,
    ]


def slow_command(room: MutatedRoom) -> list[str]:
    """Return the command that runs the slow tests of *room*."""
    return pytest_command((f"tests/{path}" for path in room.slow), "-n2")


def seconds_without_mutant(command: Sequence[str]) -> float | None:
    """Return how long *command* takes; None: its tests fail, and what they print is
    printed.
    """
    began = time.monotonic()
    baseline = subprocess.run(command, capture_output=True, text=True)
    if baseline.returncode:
        print(baseline.stdout)
        return None
    return time.monotonic() - began


def timeout_of(seconds: float) -> float:
    """Return after how many seconds a mutant counts as noticed: it has made the tests
    hang.
    """
    return 30 + 3 * seconds


@dataclass(frozen=True)
class QuickTests:
    """The tests of a room that are not slow, and which lines each of them executes."""

    paths: list[str]
    seconds: float
    tests_of: dict[Path, dict[int, set[str]]]
    """By file and line, those that execute it."""

    @classmethod
    def of(cls, room: MutatedRoom) -> QuickTests | None:
        """Run the quick tests of *room* without a mutant; None: one of them fails."""
        paths = [f"tests/{path}" for path in room.quick]
        options = ("-p", "no:xdist", "-m", "not slow")
        measured: tuple[str, ...] = (
            "--cov=flowpregel",
            "--cov-context=test",
            "--cov-report=",
        )
        if room.is_in_forks:
            measured = ()
        seconds = seconds_without_mutant(pytest_command(paths, *options, *measured))
        if seconds is None:
            return None
        if room.is_in_forks:
            return cls([*options, *paths], seconds, {})
        data = CoverageData(".coverage")
        data.read()
        tests_of = {
            Path(file): {
                line: {context.partition("|")[0] for context in contexts} - {""}
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return cls([*options, *paths], seconds, tests_of)

    def commands_for(self, spec: MutationSpec) -> Iterator[tuple[str, float]]:
        """Yield the commands that test a mutant, each with the seconds after which it
        hangs. A command is needed if those before it notice nothing.
        """
        timeout = timeout_of(self.seconds)
        lines = self.tests_of.get(spec.module_path.resolve(), {})
        found = {test for row in range(*rows_of(spec)) for test in lines.get(row, ())}
        # Of very many, some of each file are likely to notice.
        others = sorted(test for test in found if not test.startswith(UNIT_TESTS))
        few = others[:: len(others) // MOST_CHOSEN + 1]
        first = [*sorted(found.difference(others)), *few]
        if first:
            yield shlex.join(pytest_command(first, "-p", "no:xdist")), timeout
        # What only the import executes, a fork, or another program may matter to any
        # test.
        yield shlex.join(pytest_command(self.paths)), timeout


def rows_of(spec: MutationSpec) -> tuple[int, int]:
    """Return the first line of a mutant, and that behind its last."""
    return spec.start_pos[0], spec.end_pos[0] + 1


if __name__ == "__main__":
    sys.exit(main())
