"""`shell`: commands as tasks."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import shell
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import CommandFailedError, NodeTimeoutError, RunStopped
from flowpregel.func import CommandResult, entrypoint
from tests.runs.pooling import wait_until

LONG = 60.0


def ran(
    *args: Any, executor: Any = "threads", timeout: float | None = None, **given: Any
) -> Any:
    """Return what a run of one command returns."""

    @entrypoint(executor=executor)
    def flow(_: int) -> Any:
        return shell.with_options(timeout=timeout)(*args, **given).result()

    return flow.run(0)


def test_a_command_is_a_task_with_its_output(tmp_path: Path) -> None:
    """A text goes to the shell, a list does not."""
    there = str(tmp_path)

    assert CommandResult(0, "a b\n") == ran("echo a  b")
    assert CommandResult(0, "$X\n") == ran(["echo", "$X"], env={"X": "1"})
    assert CommandResult(0, f"{there} 1\n") == ran(
        'echo "$(pwd) $X"', cwd=there, env={"X": "1"}
    )


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Open so many files that those opened in the test have numbers above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2_048
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this process may open only {hard} files")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    with open(os.devnull, "rb") as null:
        opened = [os.dup(null.fileno())]
        while opened[-1] < 1_024:
            opened.append(os.dup(null.fileno()))
        try:
            yield
        finally:
            for number in opened:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_program_with_many_open_files_reads_what_a_command_writes() -> None:
    """`select.select` refuses descriptors above 1,023."""
    assert CommandResult(0, "a\n") == ran("echo a; echo b >&2")


def test_a_failure_says_which_command_and_what_it_wrote() -> None:
    """Unless its exit code is asked for."""
    with pytest.raises(
        CommandFailedError, match=r"'echo no; exit 3' .* 3; its last output: no"
    ):
        ran("echo no; exit 3")

    assert CommandResult(3, "no\n") == ran("echo no; exit 3", check=False)
    assert -9 == ran("kill -9 $$", check=False).exit_code


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_failure_shows_the_end_of_both_streams(executor: str) -> None:
    """What went wrong mostly stands in stderr."""
    command = (
        "seq 1 9999; echo 'bad input' >&2; seq 1 99999 >&2; echo 'no space left' >&2; "
        "exit 3"
    )
    with pytest.raises(CommandFailedError, match="ended with exit code 3") as failed:
        ran(command, executor=executor)

    shown = str(failed.value)
    assert "\n[stderr] " in shown
    assert "99999\nno space left\n[stdout] " in shown
    assert shown.endswith("\n9998\n9999")
    assert "\nbad input" not in shown
    assert 2_500 > len(shown)
    with pytest.raises(
        CommandFailedError, match=r"exit code 4; its last output: no such file\n"
    ):
        ran("echo 'no such file' >&2; exit 4", executor=executor)


def test_stderr_of_a_command_is_still_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """As it is written, in the task's stderr."""
    assert CommandResult(0, "b\n") == ran("echo a >&2; echo b")

    assert "a\n" == capfd.readouterr().err


def test_of_a_long_output_the_end_is_kept() -> None:
    """So many bytes, however much there is."""
    output = ran("seq 1 200000", keep=100).output

    assert 100 == len(output)
    assert output.endswith("\n199999\n200000\n")


def test_a_program_that_is_not_there_fails_as_python_says() -> None:
    """It is no exit code."""
    with pytest.raises(FileNotFoundError):
        ran(["no-such-program"])


def ends(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has waited for, too."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    except FileNotFoundError:
        return True


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """Also what holds its output open."""
    pid = int(ran("sleep 60 & echo $!").output)

    wait_until(lambda: ends(pid), LONG)


@pytest.mark.slow
def test_what_a_command_leaves_behind_may_write_without_end() -> None:
    """The command has ended all the same."""
    assert "y\ny\n" == ran("yes &", keep=4, executor="processes", timeout=LONG).output


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped_with_all_its_processes(
    tmp_path: Path,
) -> None:
    """A timeout, as of any task."""
    file = tmp_path / "pid"

    @entrypoint(executor="processes")
    def flow(_: int) -> Any:
        try:
            return shell.with_options(timeout=3)(
                f"sleep 60 & echo $! > {file}; wait"
            ).result()
        except NodeTimeoutError:
            return "timed out"

    began = time.monotonic()
    assert "timed out" == flow.run(0)
    assert time.monotonic() - began < LONG
    if file.exists():  # under load it may not have come so far
        wait_until(lambda: not file.read_text() or ends(int(file.read_text())), LONG)


@pytest.mark.parametrize(
    "executor", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_command_is_told_that_its_run_is_to_end(
    tmp_path: Path, executor: str
) -> None:
    """By SIGTERM, which it may take to end well."""
    file = tmp_path / "begun"
    trap = f"trap 'echo saved; exit 0' TERM; touch {file}; while :; do sleep 0.05; done"

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(_: int) -> Any:
        return shell(trap).result().output

    handle = flow.start(0, id="1")
    wait_until(file.exists, LONG)
    handle.end()

    assert "saved\n" == handle.result(LONG)


def test_a_command_that_ends_badly_when_told_is_run_again(tmp_path: Path) -> None:
    """It has not failed."""
    file = tmp_path / "begun"

    @entrypoint(executor="threads", checkpointer=InMemorySaver())
    def flow(_: int) -> Any:
        return (
            shell(f"test -e {file} || {{ touch {file}; sleep 60; }}; echo done")
            .result()
            .output
        )

    handle = flow.start(0, id="1")
    wait_until(file.exists, LONG)
    handle.end()
    with pytest.raises(RunStopped):
        handle.result(LONG)

    assert "done\n" == flow.run(0, id="1")
    assert os.path.exists(file)
