"""Output files of tasks, which are recorded with digests, and compared on demand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel import File, InMemorySaver, Runtime, get_runtime
from flowpregel.checkpoint.base import Address, BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import RunNotice
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.storage import StoreOptions
from tests.runs.cli_jobs import environment
from tests.runs.crashes import AT_ONCE
from tests.runs.notes import Notes
from tests.runs.watched import reading

LONG = 60.0
seen = Notes()


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin in a folder of the test's own, in which relative paths are."""
    monkeypatch.chdir(tmp_path)
    seen.clear()


@task(executor="inline")
def write(name: str, runtime: Runtime[Any]) -> File:
    seen.append(name)
    runtime.output(f"out/{name}.txt").write_text(name * 3)
    return File(f"out/{name}.txt")


@task(executor="inline")
def length(file: File) -> int:
    seen.append(str(file))
    return len(Path(file).read_text())


def study_on(checkpointer: Any) -> Any:
    """Return a workflow that writes a file for each name, and reads it."""

    @entrypoint(checkpointer=checkpointer)
    def study(names: list[str]) -> int:
        files = [future.result() for future in write.map(names)]
        return sum(future.result() for future in length.map(files))

    return study


@pytest.fixture
def store() -> Iterator[LMDBSaver]:
    with LMDBSaver("runs.lmdb") as saver:
        yield saver


@pytest.fixture
def finished() -> Path:
    """The store of a finished run, which no process has open."""
    with LMDBSaver("runs.lmdb") as saver:
        assert 6 == study_on(saver).run(["a", "b"], id="1")
    return Path("runs.lmdb")


def recorded(saver: BaseCheckpointSaver) -> dict[str, list[str]]:
    """Return the recorded output files, by the text of the call."""
    calls = saver.output_files(Address("1"))
    return {call.name: [file.path for file in call.files] for call in calls}


def command(*words: str) -> Result:
    return CliRunner().invoke(app, words)


# ---------------------------------------------------------------- the record


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_output_is_recorded_with_its_call(in_memory: bool, store: LMDBSaver) -> None:
    """Its size and a digest, too."""
    saver = InMemorySaver() if in_memory else store

    study_on(saver).run(["a", "b"], id="1")

    expected = {"write('a')": ["out/a.txt"], "write('b')": ["out/b.txt"]}
    assert expected == recorded(saver)
    first, second = saver.output_files(Address("1"))
    assert 3 == first.files[0].state.size
    assert first.files[0].digest != second.files[0].digest
    assert first.is_call


def test_the_output_of_a_node_is_recorded(store: LMDBSaver) -> None:
    def render(state: dict[str, Any]) -> dict[str, Any]:
        get_runtime().output("page.html").write_text("page")
        return {"pages": 1}

    graph = StateGraph(dict)
    graph.add_node("render", render)
    graph.add_edge(START, "render")
    graph.add_edge("render", END)
    graph.compile(checkpointer=store, executor="inline").invoke({}, thread_id="1")

    assert {"render": ["page.html"]} == recorded(store)
    (node,) = store.output_files(Address("1"))
    assert not node.is_call


def test_a_run_without_a_store_takes_no_digest() -> None:
    @task(executor="inline")
    def written(runtime: Runtime[Any]) -> int:
        runtime.output("a.txt").write_text("a")
        return len(runtime.__class__.__name__)

    @entrypoint()
    def flow(_: int) -> int:
        return written().result()

    assert 7 == flow.run(0)
    assert "a" == Path("a.txt").read_text()


def test_a_store_without_previews_records_no_outputs() -> None:
    with LMDBSaver("runs.lmdb", options=StoreOptions(kept_previews=0)) as saver:
        study_on(saver).run(["a"], id="1")
        assert {} == recorded(saver)

    checked = command("check", "runs.lmdb")

    assert Code.OK == checked.exit_code
    assert "output files" not in checked.stdout


def test_the_temporary_path_keeps_the_end_of_the_name(store: LMDBSaver) -> None:
    """From which many libraries choose a format."""
    names = []

    @task(executor="inline")
    def draw(runtime: Runtime[Any]) -> None:
        path = runtime.output("plot.png")
        names.append(path.name)
        path.touch()

    @entrypoint(checkpointer=store)
    def flow(_: int) -> None:
        draw().result()

    flow.run(0, id="1")

    assert names[0].startswith(".")
    assert names[0].endswith(".part.plot.png")
    assert ["plot.png", "runs.lmdb"] == sorted(os.listdir())


# ---------------------------------------------------------------- chunks


@task(executor="inline")
def write_all_but(number: int, bad: int, runtime: Runtime[Any]) -> int:
    runtime.output(f"{number}.txt").write_text(str(number))
    if number == bad and not seen:
        seen.append(number)
        raise ValueError("no")
    return number


def test_an_item_that_fails_does_not_take_the_outputs_of_others_along(
    store: LMDBSaver,
) -> None:
    """Their results are recorded, and they do not run again."""

    @entrypoint(checkpointer=store)
    def flow(count: int) -> list[int]:
        futures = write_all_but.map(range(count), [1] * count, chunksize=count)
        return [future.result() for future in futures]

    with pytest.raises(ValueError, match="no"):
        flow.run(3, id="1")
    names = sorted(path.name for path in Path().glob("*.txt"))
    result = flow.run(3, id="1")

    assert ["0.txt", "2.txt"] == names
    assert [0, 1, 2] == result
    assert "1" == Path("1.txt").read_text()


# ---------------------------------------------------------------- folders and links


@task(executor="inline")
def write_tiles(count: int, runtime: Runtime[Any]) -> File:
    folder = runtime.output("tiles/")
    for number in range(count):
        (folder / f"{number}.txt").write_text("tile")
    return File("tiles")


def tiles_on(saver: LMDBSaver) -> Any:
    @entrypoint(checkpointer=saver)
    def tiles(count: int) -> list[str]:
        return sorted(os.listdir(write_tiles(count).result()))

    return tiles


def test_a_folder_as_output_replaces_an_earlier_folder(store: LMDBSaver) -> None:
    tiles = tiles_on(store)
    tiles.run(3, id="0")

    assert ["0.txt", "1.txt"] == tiles.run(2, id="1")
    assert ["runs.lmdb", "tiles"] == sorted(os.listdir())
    (call,) = store.output_files(Address("1"))
    assert 8 == call.files[0].state.size


def test_a_change_inside_of_a_folder_is_found() -> None:
    """A folder that was copied with its times is unchanged, and is not read."""
    with LMDBSaver("runs.lmdb") as saver:
        tiles_on(saver).run(2, id="1")
    shutil.copytree("tiles", "copy")
    shutil.rmtree("tiles")
    Path("copy").rename("tiles")
    copied = command("check", "runs.lmdb")
    Path("tiles", "1.txt").write_text("tale")
    changed = command("check", "runs.lmdb")

    assert Code.OK == copied.exit_code
    assert "output files: 1 unchanged, 0 changed, 0 gone" in copied.stdout
    assert Code.FAILED == changed.exit_code
    assert "write_tiles(2): tiles/ 8 bytes, changed since\n" in changed.stdout


def test_a_link_as_output_counts_by_the_content_of_its_target(
    store: LMDBSaver,
) -> None:
    Path("target.txt").write_text("target")

    @task(executor="inline")
    def link(runtime: Runtime[Any]) -> None:
        runtime.output("link.txt").symlink_to(Path("target.txt").absolute())

    @entrypoint(checkpointer=store)
    def flow(_: int) -> None:
        link().result()

    flow.run(0, id="1")

    assert Path("link.txt").is_symlink()
    (call,) = store.output_files(Address("1"))
    assert 6 == call.files[0].state.size


# ---------------------------------------------------------------- gone


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_uses_the_result_of_a_gone_output_gives_a_notice(
    fails: bool, store: LMDBSaver
) -> None:
    """Nothing runs again: a task may have other effects. So a run does not need the
    intermediate files of recorded calls.
    """
    crashes = [fails]

    @entrypoint(checkpointer=store)
    def study(names: list[str]) -> int:
        files = [future.result() for future in write.map(names)]
        total = sum(future.result() for future in length.map(files))
        if crashes.pop():
            crashes.append(False)
            raise OSError("crash")
        return total

    if fails:
        with pytest.raises(OSError, match="crash"):
            study.run(["a", "b"], id="1")
    else:
        study.run(["a", "b"], id="1")
    before = [*seen]
    Path("out/a.txt").unlink()

    notice = r"output 'out/a.txt' of write\('a'\) is gone; .*`flowpregel redo 1 --gone`"
    with pytest.warns(RunNotice, match=notice):
        assert 6 == study.run(["a", "b"], id="1")

    assert before == [*seen]
    assert not Path("out/a.txt").exists()


def test_gone_outputs_are_made_again_once_their_calls_are_taken_back(
    finished: Path,
) -> None:
    """The calls that use them are answered from the record if the content is the
    same.
    """
    Path("out/a.txt").unlink()
    seen.clear()

    taken = command("redo", "1", "--gone", "--store", str(finished))
    with LMDBSaver(finished) as saver:
        result = study_on(saver).run(["a", "b"], id="1")

    assert "taken back: write('a')\n" in taken.stdout
    assert 6 == result
    assert ["a"] == [*seen]
    assert "aaa" == Path("out/a.txt").read_text()


def test_nothing_is_taken_back_if_no_output_is_gone(finished: Path) -> None:
    """A `redo` without calls is an error."""
    nothing = command("redo", "1", "--gone", "--store", str(finished))
    unnamed = command("redo", "1", "--store", str(finished))

    text = "no call of the outermost graph has lost an output file"
    assert Code.OK == nothing.exit_code
    assert nothing.stdout.startswith(text)
    assert Code.USAGE == unnamed.exit_code


# ---------------------------------------------------------------- check and show


def test_check_names_outputs_that_are_gone_or_changed(finished: Path) -> None:
    """With the commands that make them again."""
    Path("out/a.txt").unlink()
    Path("out/b.txt").write_text("xyz")

    checked = command("check", str(finished), "--run", "1")

    assert Code.FAILED == checked.exit_code
    assert "  write('a'): out/a.txt 3 bytes, gone\n" in checked.stdout
    assert "  write('b'): out/b.txt 3 bytes, changed since\n" in checked.stdout
    assert "flowpregel redo 1 --gone --store runs.lmdb\n" in checked.stdout
    assert "output files: 0 unchanged, 1 changed, 1 gone\n" in checked.stdout


def test_a_file_that_was_only_touched_is_unchanged(finished: Path) -> None:
    """As JSON, a run without problems is left out."""
    os.utime("out/a.txt")

    checked = command("check", str(finished))

    assert Code.OK == checked.exit_code
    assert "output files: 2 unchanged, 0 changed, 0 gone\n" in checked.stdout
    assert "[]\n" == command("check", str(finished), "--json").stdout


def test_a_file_that_became_a_pipe_is_changed_and_not_read(finished: Path) -> None:
    """Which would wait for a writer."""
    Path("out/a.txt").unlink()
    os.mkfifo("out/a.txt")

    checked = command("check", str(finished))

    assert "write('a'): out/a.txt 3 bytes, changed since" in checked.stdout


def test_check_of_an_unknown_run_fails(finished: Path) -> None:
    checked = command("check", str(finished), "--run", "2")

    assert Code.USAGE == checked.exit_code
    assert "no thread '2'" in checked.stderr


def test_outputs_that_moved_with_their_store_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their relative paths, from any folder."""
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    with LMDBSaver("runs.lmdb") as saver:
        study_on(saver).run(["a"], id="1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").rename(tmp_path / "new")

    checked = command("check", "new/runs.lmdb")

    assert "output files: 1 unchanged, 0 changed, 0 gone\n" in checked.stdout


def test_show_lists_the_outputs_with_their_sizes_and_states(finished: Path) -> None:
    """Without reading them."""
    Path("out/a.txt").unlink()
    os.utime("out/b.txt", (1, 1))

    shown = command("show", "1", "--store", str(finished))

    assert "\n  write('a'): out/a.txt 3 bytes, gone\n" in shown.stdout
    assert "\n  write('b'): out/b.txt 3 bytes, written since\n" in shown.stdout


def test_the_outputs_of_a_call_are_among_its_details(store: LMDBSaver) -> None:
    """Which the page shows."""
    study_on(store).run(["a"], id="1")
    with reading(store) as reader:
        ids = {row.text: row.id for row in reader.calls("1").rows}
        details = reader.call("1", ids["write('a')"])

    assert details is not None
    expected = {"path": "out/a.txt", "size": 3, "state": "unchanged", "present_size": 3}
    assert [expected] == details["outputs"]


# ---------------------------------------------------------------- kills

PROGRAM = """
import sys
from flowpregel import File, Runtime, entrypoint, task

@task
def write(size: int, runtime: Runtime) -> File:
    print("write", flush=True)
    runtime.output("big.txt").write_text("x" * size)
    return File("big.txt")

@task
def length(file: File) -> int:
    return len(open(file).read())

@entrypoint(checkpointer="runs.lmdb", executor="processes")
def flow(size: int) -> int:
    return length(write(size).result()).result()

if __name__ == "__main__":
    print(flow.run(9, id="1"))
"""


@pytest.mark.slow
def test_an_output_counts_only_once_its_call_is_recorded(tmp_path: Path) -> None:
    """The worker is killed between the two, and another program resumes the run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    once = tmp_path / "once"
    killed = subprocess.run(
        [sys.executable, "program.py"],
        env=environment(
            FLOWPREGEL_FAULT="worker.task.send.before:1:kill",
            FLOWPREGEL_FAULT_ONCE=str(once),
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    with LMDBSaver("runs.lmdb") as saver:
        before = recorded(saver)
    is_in_place = Path("big.txt").exists()
    resumed = subprocess.run(
        [sys.executable, "program.py"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LONG,
    )
    with LMDBSaver("runs.lmdb") as saver:
        after = recorded(saver)

    assert "WorkerDiedError" in killed.stderr
    assert is_in_place
    assert {} == before
    assert "[write] write\n9\n" == resumed.stdout
    assert {"write(9)": ["big.txt"]} == after


@task(retry_policy=AT_ONCE)
def write_tiles_and_die_once(attempts: Notes, runtime: Runtime[Any]) -> File:
    folder = runtime.output("tiles/")
    attempts.append("tried")
    (folder / f"{len(attempts)}.txt").write_text("tile")
    if len(attempts) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return File("tiles")


@pytest.mark.slow
def test_the_output_of_a_killed_attempt_is_no_part_of_the_next(
    store: LMDBSaver,
) -> None:
    attempts = Notes()
    with ProcessExecutor(1) as pool:

        @entrypoint(checkpointer=store, executor=pool)
        def flow(_: int) -> list[str]:
            return os.listdir(write_tiles_and_die_once(attempts).result())

        assert ["2.txt"] == flow.run(0, id="1")

    (call,) = store.output_files(Address("1"))
    assert 4 == call.files[0].state.size
    assert ["runs.lmdb", "tiles"] == sorted(os.listdir())
