"""The main job: a census that is killed again and again ends with the same report."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import RETURN, Address
from flowpregel._engine.background_writer import MOST_BEHIND
from flowpregel.checkpoint.lmdb import LMDBSaver

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
STDLIB = Path(sysconfig.get_paths()["stdlib"])
SOME = [str(STDLIB / name) for name in ("asyncio", "email", "importlib", "xml", "json")]
EVERYTHING = "FLOWPREGEL_CRASH_ALL" in os.environ
KILLS, FOLDERS = (20, [str(STDLIB)]) if EVERYTHING else (2, SOME)
"""``tox -e crash`` kills the census of the whole standard library 20 times."""
MOST = 1.1
"""How much of the time of an undisturbed census the measuring may take, where it is
long.
"""


class Log:
    """A pipe that the census logs to: what was written is here, whoever was killed
    since.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for both ends, so that neither a missing reader nor a missing writer ends
        # it.
        self._file = os.open(path, os.O_RDWR)
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        rest = b""
        while not rest.endswith(b"END\n"):
            rest += os.read(self._file, 65536)
            *lines, rest = rest.split(b"\n")
            with self._changed:
                self.lines += [line.decode() for line in lines if line != b"END"]
                self._changed.notify_all()
            if b"END" in lines:
                return

    def wait_for(self, count: int, process: subprocess.Popen[str]) -> None:
        """Wait until there are *count* lines, or *process* ends."""
        with self._changed:
            while len(self.lines) < count and process.poll() is None:
                self._changed.wait(0.1)

    def close(self) -> None:
        """Stop reading."""
        os.write(self._file, b"END\n")
        self._reader.join()
        os.close(self._file)


def started(folder: Path, log: Path, executor: str) -> subprocess.Popen[str]:
    """Start the census as a user does."""
    return subprocess.Popen(
        [
            sys.executable,
            str(EXAMPLES / "census.py"),
            *FOLDERS,
            "--executor",
            executor,
            "--log",
            str(log),
            "--page",
            "page.html",
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def report(output: str) -> str:
    """Return the report without how long it took and how far it was on the way."""
    start = output.index("\n\n")
    return output[start : output.rindex("\n\n")]


def committed(folder: Path) -> set[str]:
    """Return the files whose measurements are on disk."""
    with LMDBSaver(folder / "census.lmdb") as saver:
        saved = saver.load(Address("census"))
    values: list[Any] = (
        [] if saved is None else [w.value for w in saved.writes if w.channel == RETURN]
    )
    return {value.path for value in values if hasattr(value, "path")}


def begun(lines: list[str]) -> list[str]:
    """Return the files whose measurement the log says was begun."""
    return [line for line in lines if "\t" not in line]


@pytest.mark.slow
def test_the_report_for_a_terminal_has_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And shows names as they are, whatever they mean to rich."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import census_measure
    import census_report
    import census_terminal
    from rich.console import Console

    (tmp_path / "[red]x.py").write_text(
        "def f(a):\n    if a and 1 or 2:\n        return 1\n"
    )
    found = census_report.Census()
    for package, path in census_measure.python_files([str(tmp_path)]):
        found.add(census_measure.measure_file(package, path))
    console = Console(record=True, width=200, file=io.StringIO())

    console.print(census_terminal.report(found.summary()))

    text = console.export_text()
    assert all(
        part in text
        for part in ("files", "functions by complexity", "[red]x.py:1", "  4 ")
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """Return what a census prints that nobody kills, and its log."""
    folder = tmp_path_factory.mktemp("undisturbed")
    printed, _ = started(folder, folder / "log", "processes").communicate(timeout=120)
    return printed, (folder / "log").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_a_census_that_is_killed_goes_on_and_reports_the_same(
    tmp_path: Path,
    executor: str,
    undisturbed: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file whose result was kept is measured again."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    expected, lines = undisturbed
    files, seconds = (
        begun(lines),
        dict(line.split("\t") for line in lines if "\t" in line),
    )
    assert len(files) == len(set(files)) == len(seconds) > 100

    log, luck = Log(tmp_path / "log"), random.Random(7)
    done: set[str] = set()
    try:
        for left in range(KILLS, 0, -1):
            before = len(log.lines)
            process = started(tmp_path, log.path, executor)
            # Each file is two lines: on the average the kills share what there is to
            # do.
            most = 4 * (len(files) - len(done)) // (left + 1)
            log.wait_for(before + luck.randrange(1, most), process)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL, (
                "it had ended before it was killed"
            )
            assert not done & {*begun(log.lines[before:])}, (
                "a committed file was measured again"
            )
            done = committed(tmp_path)
        before = len(log.lines)
        found, _ = started(tmp_path, log.path, executor).communicate(timeout=120)
    finally:
        log.close()

    assert report(expected) == report(found), found
    assert not done & {*begun(log.lines[before:])}
    measured = Counter(begun(log.lines))
    assert set(files) == set(measured)
    spent = sum(float(seconds[path]) * times for path, times in measured.items())
    share = spent / sum(map(float, seconds.values()))
    again = sum(measured.values()) - len(files)
    print(
        f"{executor}: {KILLS} kills, {len(files)} files, {again} measured again, "
        f"{share:.3f} x"
    )
    # On OS threads the coordinator waits for the GIL, and finds many that have ended
    # meanwhile: how many a commit keeps is up to them.
    if executor == "processes":
        running = os.cpu_count() or 1
        assert again <= KILLS * (MOST_BEHIND + running), (
            "more than what was on its way to the disk"
        )
        assert share < MOST or not EVERYTHING
