"""Change the code in one place at a time, and count how many changes no test notices.

``python -m tests.mutants`` (``tox -e mutants``) copies the tree, draws a sample of mutants of each
room at random, and runs the room's tests against each. Mutants are made by Cosmic Ray. A room of
which more than a tenth of the mutants live fails the command. A line whose mutants all mean the
same as the line itself is left out by a comment ``# no mutant: REASON``.
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
from collections.abc import Iterable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Final

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
"""The operators whose mutants mean something else; most others of a comparison mean the same."""


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--sample", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--floor", type=float, default=0.9, help="the least share to be noticed")
    parser.add_argument("--only", default="", help="mutate only files whose path holds this")
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(ROOMS):
        parser.error(f"unknown rooms: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    print(f"--seed {options.seed}")
    is_good = True
    with tempfile.TemporaryDirectory(prefix="flowpregel-mutants-") as folder:
        copy_tree(Path(folder))
        with chdir(folder):
            os.environ["PYTHONPATH"] = folder
            for name in options.rooms or ROOMS:
                # A generator of its own: the sample of a room does not depend on the others.
                chance = random.Random(f"{options.seed} {name}")
                mutants = [m for m in mutants_of(ROOMS[name]) if options.only in str(m.module_path)]
                sample = chance.sample(mutants, min(options.sample, len(mutants)))
                is_good &= examine(name, sample, options.floor)
    return not is_good


def copy_tree(folder: Path) -> None:
    """Copy what the tests need to *folder*, so that no mutant is ever in the checkout."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        else:
            shutil.copy(source, folder / name)


def mutants_of(room: MutatedRoom) -> list[MutationSpec]:
    """Return the mutants of the files of *room*, in the order of their places."""
    files = sorted(path for pattern in room.files for path in Path("flowpregel").glob(pattern))
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(Path(folder, "mutants.sqlite")) as database,
    ):
        init(files, database, {})
        specs = [spec for item in database.work_items for spec in item.mutations]
    lines = {path: path.read_text("utf-8").splitlines() for path in files}
    chosen = [
        spec
        for spec in specs
        if spec.operator_name.removeprefix("core/") in OPERATORS
        and NO_MUTANT not in lines[spec.module_path][spec.start_pos[0] - 1]
    ]
    return sorted(chosen, key=lambda spec: (spec.module_path, spec.start_pos, spec.operator_name))


def examine(name: str, sample: Iterable[MutationSpec], floor: float) -> bool:
    """Test each mutant of *sample*, print those that live, and return whether few do."""
    room = ROOMS[name]
    tests = [str(Path("tests", path)) for path in room.tests]
    command = [sys.executable, "-m", "pytest", "-qx", "-n2", "-p", "no:cacheprovider", *tests]
    if room.is_quick:
        command += ["-m", "not slow"]
    began = time.monotonic()
    baseline = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if baseline.returncode:
        print(f"{name}: the tests fail without a mutant\n{baseline.stdout}")
        return False
    print(f"{name}: the tests take {seconds:.0f} s", flush=True)
    count = killed = 0
    for spec, result in tested(sample, shlex.join(command), timeout=30 + 3 * seconds):
        count += 1
        if result.test_outcome == TestOutcome.SURVIVED:
            print(f"lives: {spec.operator_name}\n{result.diff}", flush=True)
        else:
            killed += 1
    share = killed / count if count else 1.0
    print(
        f"{name}: {killed} of {count} mutants noticed ({share:.0%}; floor {floor:.0%})", flush=True
    )
    return share >= floor


def tested(
    sample: Iterable[MutationSpec], command: str, timeout: float
) -> Iterator[tuple[MutationSpec, WorkResult]]:
    """Yield each mutant with its result; one that could not be made is left out."""
    for spec in sample:
        result = mutate_and_test([spec], command, timeout)
        if result.test_outcome is not None:
            yield spec, result


if __name__ == "__main__":
    sys.exit(main())
