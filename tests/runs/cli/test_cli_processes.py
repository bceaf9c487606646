"""The command as a program of its own: signals, terminals, and what it imports."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import click
import pytest

import flowpregel.cli
from flowpregel.cli.app import app
from tests.runs.cli_flows import FLOWS
from tests.runs.cli_jobs import COMMAND, ROOT, RUN, environment, half_way, let_go


def commands_of_modules() -> list[tuple[str, click.Command]]:
    """Return each command that a module of `flowpregel.cli` defines, with its module's
    name.
    """
    return [
        (name, value)
        for _, name, _ in iter_modules(flowpregel.cli.__path__)
        for value in vars(import_module(f"flowpregel.cli.{name}")).values()
        if isinstance(value, click.Command) and not isinstance(value, click.Group)
    ]


@pytest.mark.slow
def test_ctrl_c_keeps_what_finished_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    """Workers included: Ctrl-C reaches the whole process group."""
    with half_way(tmp_path, told=("worked 2", "got the first")) as first:
        os.killpg(first.pid, signal.SIGINT)
        _, told = first.communicate(timeout=30)

    let_go(tmp_path / "go")
    second = subprocess.run(
        RUN,
        cwd=tmp_path,
        env=environment(),
        text=True,
        timeout=30,
        check=True,
        capture_output=True,
    )

    assert 130 == first.returncode
    assert "resume with: flowpregel resume job --store store" in told
    assert "6\n" == second.stdout
    assert "worked 0" not in second.stderr
    assert "worked 2" in second.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_a_live_view(tmp_path: Path, plain: bool) -> None:
    """In colour, unless NO_COLOR is set."""
    terminal, end = pty.openpty()
    more = {"NO_COLOR": "1"} if plain else {}
    process = subprocess.Popen(
        [*COMMAND, "run", f"{FLOWS}:shares", "--input", "[0]"],
        cwd=ROOT,
        env=environment(TERM="xterm", **more),
        stdout=subprocess.PIPE,
        stderr=end,
    )
    os.close(end)
    process.communicate(timeout=30)
    shown = b""
    while chunk := _read(terminal):
        shown += chunk
    os.close(terminal)

    assert b"divide: 0 done, 1 failed" in shown
    assert b"divide failed" in shown
    assert plain is (b"\x1b[31m" not in shown)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # what Linux says at the end of a terminal
        return b""


def test_the_script_is_the_command() -> None:
    """What an installation puts on PATH calls the same function."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "scripts"
    ]
    module, _, name = scripts["flowpregel"].partition(":")

    assert flowpregel.cli.main is getattr(sys.modules[module], name)


def test_without_the_extra_the_command_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['click'] = None; import flowpregel.cli as c; c.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == result.returncode
    assert "pip install 'flowpregel[cli]'" in result.stderr


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["ls", "--help"]])
def test_help_imports_neither_the_engine_nor_the_store(words: list[str]) -> None:
    """So that it is there at once."""
    code = (
        "import atexit, sys; from flowpregel.cli import main; sys.argv = "
        "['flowpregel', "
        f"*{words!r}]; heavy = ['lmdb', 'rich', 'loky', 'asyncio', "
        "'flowpregel.pregel']; "
        "atexit.register(lambda: print('heavy:', [m for m in heavy if m in "
        "sys.modules])); main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert "Usage: flowpregel" in result.stdout
    assert "heavy: []" == result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (["--version"], set()),
        (["ls", "--help"], {"threads", "looking"}),  # which share options
        (["compare", "--help"], {"tables"}),
    ],
)
def test_a_command_imports_the_modules_of_no_other_command(
    words: list[str], modules: set[str]
) -> None:
    """What each command would otherwise import for all takes a third of its start."""
    others = {module for module, _ in commands_of_modules()} - modules
    code = (
        "import atexit, sys; from flowpregel.cli import main; "
        f"sys.argv = ['flowpregel', *{words!r}]; "
        "atexit.register(lambda: print(*[m for m in sys.modules if "
        "m.startswith('flowpregel.cli.')])); main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = result.stdout.splitlines()[-1].split()
    names = {module.removeprefix("flowpregel.cli.") for module in imported}

    assert modules <= names
    assert set() == others & names


def test_the_command_knows_each_command_of_its_modules() -> None:
    """They are listed by name, so that none is imported for another."""
    listed = {name: command.callback for name, command in app.commands.items()}

    assert {
        command.name: command.callback for _, command in commands_of_modules()
    } == listed
