"""The edits of a working day, each with what happens at the next run.

Every row of the table ``edits_of_a_working_day.toml`` is a program that ran in the
morning, and finished, failed, was killed or waits; the program is edited, and run again
in a new process, on the same LMDB store.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runs.replay.programs_of_a_working_day import PROGRAMS
from tests.runs.replay.working_days import (
    AGAIN,
    EVENTS,
    FAILED,
    FIRST,
    NOTICE,
    OUTCOME,
    SECOND,
    Job,
)
from tests.runs.stores import ROOT

pytestmark = pytest.mark.slow

TABLE = tomllib.loads(
    Path(__file__).with_name("edits_of_a_working_day.toml").read_text()
)
MAIN = "program.py"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A row of the table."""

    edit: str
    """What is edited, in words."""
    program: str
    """The name of the program."""
    change: str = ""
    """A diff: hunks apart by ``@@``, behind which the name of a file may stand."""
    constant: str = ""
    """The constant of the program `CONSTANT`."""
    becomes: str = ""
    use: str = ""
    asked_for: bool = False
    """Whether the edit itself says that finished calls are made again."""
    is_unseen: bool = False
    """Whether the docs have it among what the digest of code cannot see."""
    then: list[str] = field(default_factory=list)
    """The calls and notices after the edit."""
    gives: str = ""
    """What the program returns then, as text."""
    fails: str = ""
    """What it fails with."""

    @property
    def old(self) -> dict[str, str]:
        """The files before the edit."""
        files = dict(PROGRAMS[self.program])
        if self.constant:
            main = files[MAIN].replace("CONSTANT", self.constant.strip())
            files[MAIN] = main.replace("USE", self.use)
        return files

    @property
    def new(self) -> dict[str, str]:
        """The files after the edit."""
        files = self.old
        if self.constant:
            files[MAIN] = files[MAIN].replace(
                self.constant.strip(), self.becomes.strip()
            )
        name = MAIN
        for hunk in re.split("^@@", f"\n{self.change}", flags=re.MULTILINE):
            first, _, lines = hunk.partition("\n")
            name = first.strip() or (name if first else MAIN)
            if lines.strip():
                files[name] = changed(
                    files.get(name, ""), lines.rstrip("\n").split("\n")
                )
        return files


def changed(text: str, hunk: list[str]) -> str:
    """Return *text* with a hunk of a diff, whose lines stand once in it."""
    before = "\n".join(line[1:] for line in hunk if line[:1] != "+")
    after = "\n".join(line[1:] for line in hunk if line[:1] != "-")
    if not text:
        return f"{after}\n"
    assert f"\n{text}\n".count(f"\n{before}\n") == 1, before
    return f"\n{text}\n".replace(f"\n{before}\n", f"\n{after}\n" if after else "\n")[
        1:-1
    ]


EDITS = [Edit(**row) for row in TABLE["edits"]]


@dataclass
class Day:
    """What a program did on a day."""

    events: list[str]
    """The calls and the notices in the order of time."""
    result: str | None = None
    error: str | None = None
    again: str | None = None
    """What it returned when it was run once more."""
    trace: str = ""

    @property
    def calls(self) -> list[str]:
        """The calls that were made."""
        return [each for each in self.events if not each.startswith((NOTICE, FAILED))]

    @property
    def finished(self) -> set[str]:
        """The calls that were made and did not fail."""
        failed = {
            each.removeprefix(FAILED) for each in self.events if each.startswith(FAILED)
        }
        return {*self.calls} - failed


def run(jobs: Mapping[Path, str]) -> None:
    """Run programs on a day."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.replay.working_days"],
        input=json.dumps([Job(str(folder), day) for folder, day in jobs.items()]),
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLOWPREGEL_EXECUTOR": "inline"},
    )
    assert done.returncode == 0, done.stderr


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a program."""
    # it may be as old as the source
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def take(folder: Path) -> Day:
    """Return what a program did, and forget it; one that was killed has no outcome."""
    events, outcome = folder / EVENTS, folder / OUTCOME
    lines = events.read_text().splitlines() if events.exists() else []
    kept = json.loads(outcome.read_text()) if outcome.exists() else {}
    for path in (events, outcome):
        path.unlink(missing_ok=True)
    return Day([json.loads(line) for line in lines], **kept)


@dataclass
class Days:
    """What a program did before and after an edit, and from scratch where it said
    nothing.
    """

    first: Day
    second: Day
    scratch: list[Day] = field(default_factory=list)


@pytest.fixture(scope="module")
def days(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Days]]:
    """Return the two days of each program that a test asks for, by the edit."""
    root = tmp_path_factory.mktemp("days")
    names = set(_edits_asked_for(request))
    edits = [edit for edit in EDITS if edit.edit in names]
    folders = {edit.edit: root / str(at) / "app" for at, edit in enumerate(edits)}
    for edit in edits:
        write(folders[edit.edit], edit.old)
    run(dict.fromkeys(folders.values(), FIRST))
    first = {name: take(folder) for name, folder in folders.items()}

    scratch: dict[str, list[Path]] = {}
    for edit in edits:
        folder = folders[edit.edit]
        write(folder, edit.new)
        if edit.gives and not any(each.startswith(NOTICE) for each in edit.then):
            scratch[edit.edit] = [
                folder.parent / "old" / "app",
                folder.parent / "new" / "app",
            ]
            for other, files in zip(
                scratch[edit.edit], (edit.old, edit.new), strict=True
            ):
                write(other, files)
    others = [folder for pair in scratch.values() for folder in pair]
    run(dict.fromkeys([*folders.values(), *others], SECOND))
    yield {
        name: Days(first[name], take(folder), [*map(take, scratch.get(name, ()))])
        for name, folder in folders.items()
    }
    shutil.rmtree(root)


def _edits_asked_for(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the edits of the tests of this file that run."""
    for item in request.session.items:
        if item.path == Path(__file__) and hasattr(item, "callspec"):
            yield item.callspec.params["edit"].edit


def fits(expected: str, event: str) -> bool:
    """Return whether *event* is what is *expected*; ``*`` is any text, and a notice may
    go on.
    """
    pattern = ".*".join(map(re.escape, expected.split("*")))
    whole = not expected.startswith(NOTICE)
    return re.match(pattern + ("$" if whole else ""), event, re.DOTALL) is not None


@pytest.mark.parametrize("edit", EDITS, ids=[edit.edit for edit in EDITS])
def test_an_edit_changes_no_result_in_silence_and_repeats_no_work_untold(
    edit: Edit, days: dict[str, Days]
) -> None:
    """What the row says happens, and what holds of every row."""
    first, second = days[edit.edit].first, days[edit.edit].second
    events = (
        second.events[: second.events.index(AGAIN)] if second.again else second.events
    )

    assert len(edit.then) == len(events), (events, second.trace)
    assert all(map(fits, edit.then, events)), events
    if edit.fails:
        assert second.error is not None, second.result
        assert fits(edit.fails, second.error), second.error
    else:
        assert edit.gives == second.result, second.trace

    # No finished work is repeated without a word before.
    repeated = [at for at, each in enumerate(events) if each in first.finished]
    told = [at for at, each in enumerate(events) if each.startswith(NOTICE)]
    assert edit.asked_for or not repeated or (told and told[0] < repeated[0])
    # No result comes in silence that neither program would come to by itself.
    results = [each.result for each in days[edit.edit].scratch]
    assert edit.is_unseen or None in results or not results or edit.gives in results
    # Run once more, nothing runs, and the result is the same.
    if second.again is not None:
        assert second.result == second.again
        assert [AGAIN] == [
            each for each in second.events[len(events) :] if each in second.calls
        ]


def test_there_are_at_least_forty_five() -> None:
    """Each is a sentence of its own."""
    assert len({edit.edit for edit in EDITS}) == len(EDITS) >= 45
