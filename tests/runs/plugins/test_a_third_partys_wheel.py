"""A store, an executor and a command of another package, installed from its wheel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.plugins.wheels import Environment, write_own_wheel, write_wheel

pytestmark = pytest.mark.slow

PLUGIN = '''
"""The plug-ins of the distribution `mine`."""

import os
from concurrent.futures import ThreadPoolExecutor

from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors import FuturesExecutor
from flowpregel.plugins import StoreCheck, StorePlugin
from flowpregel.store.lmdb import LMDBStore


class MineSaver(LMDBSaver):
    """A saver of a mine, whose records are in a folder of $MINES."""

    def __init__(self, url, **keywords):
        super().__init__(folder_of(url), **keywords)
        self.location = url


class MineStores(StorePlugin):
    """The stores at mine://NAME."""

    example = "mine://NAME"
    classes = ("MineSaver",)

    def open_saver(self, location, *, readonly=False, codec=None, options=None):
        return MineSaver(location, readonly=readonly, codec=codec, options=options)

    def open_store(self, location, *, options=None):
        return LMDBStore(folder_of(location), options=options)

    def open_cache(self, location, *, options=None):
        return InMemoryCache()

    def exists(self, location):
        return os.path.isdir(folder_of(location))

    def checks(self, location):
        yield StoreCheck("depth", True, "12 m")


def folder_of(url):
    """Return the folder of a mine."""
    return os.path.join(os.environ["MINES"], url.removeprefix("mine://"))


def connect(location):
    """Return an executor, whose OS threads have the name of the location."""
    return FuturesExecutor(ThreadPoolExecutor(2, thread_name_prefix=location))
'''
COMMAND = '''
"""The command `flowpregel dig`."""

import click


@click.command("dig")
@click.argument("url")
def dig(url):
    """Dig in a mine."""
    from mine.plugin import MineSaver

    with MineSaver(url, readonly=True) as saver:
        click.echo("dug up " + ", ".join(each.thread_id for each in saver.threads()))
'''
FLOW = """
import threading
from flowpregel import entrypoint, get_runtime, task


@task
def name(number: int) -> str:
    return f"{number} on {threading.current_thread().name.partition('_')[0]}"


@entrypoint(checkpointer="mine://runs", store="mine://runs", executor="mine://east")
def flow(number: int) -> str:
    get_runtime().store.put(("done",), str(number), {"number": number})
    return name(number).result()


if __name__ == "__main__":
    print(flow.run(3, id="study-1"))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which flowpregel and `mine` are installed from wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    files = {
        "mine/__init__.py": b"",
        "mine/plugin.py": PLUGIN.encode(),
        "mine/command.py": COMMAND.encode(),
    }
    entry_points = {
        "flowpregel.stores": {"mine": "mine.plugin:MineStores"},
        "flowpregel.executors": {"mine": "mine.plugin:connect"},
        "flowpregel.commands": {"dig": "mine.command:dig"},
    }
    environment = Environment(folder / "venv")
    mine = write_wheel(folder, "mine", files, entry_points)
    environment.install(write_own_wheel(folder), mine)
    return environment


@pytest.fixture
def mines(tmp_path: Path) -> Path:
    """A folder with a program that runs on the plug-ins, and the stores of `mine`."""
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


def test_a_flow_runs_on_a_store_and_an_executor_by_their_urls(
    environment: Environment, mines: Path
) -> None:
    """``checkpointer=``, ``store=`` and ``executor=`` find the package's plug-ins, and
    a second program finds the kept result.
    """
    variables = {"MINES": str(mines)}

    first = environment.run("python", "flow.py", folder=mines, **variables)
    second = environment.run("python", "flow.py", folder=mines, **variables)

    assert "3 on east\n" == first.stdout == second.stdout
    assert (mines / "runs").is_dir()


def test_the_commands_find_a_store_by_its_url(
    environment: Environment, mines: Path
) -> None:
    """`ls`, `show`, `verify`, `doctor` and `report` use the plug-in of the scheme."""
    variables = {"MINES": str(mines), "FLOWPREGEL_STORE": "mine://runs"}
    environment.run("python", "flow.py", folder=mines, **variables)

    outputs = [
        environment.run("flowpregel", *command, folder=mines, **variables).stdout
        for command in (["ls"], ["show", "study-1"], ["verify"], ["doctor"])
    ]
    environment.run("flowpregel", "report", "study-1", folder=mines, **variables)

    assert "study-1" in outputs[0]
    assert '"3 on east"' in outputs[1]
    assert "all is well" in outputs[2]
    assert "12 m" in outputs[3]
    assert "study-1" in (mines / "run.html").read_text()


def test_a_command_of_a_package_is_in_the_help_and_runs(
    environment: Environment, mines: Path
) -> None:
    """It stands behind the own commands, and is called like them."""
    variables = {"MINES": str(mines)}
    environment.run("python", "flow.py", folder=mines, **variables)

    text = environment.run("flowpregel", "--help", folder=mines).stdout
    dug = environment.run("flowpregel", "dig", "mine://runs", folder=mines, **variables)

    assert "dig" in text
    assert "Dig in a mine." in text
    assert "dug up study-1\n" == dug.stdout


def test_a_misspelled_scheme_is_told_with_the_closest(
    environment: Environment, mines: Path
) -> None:
    """The error names what is known, and the scheme that was probably meant."""
    result = environment.run(
        "flowpregel", "ls", "--store", "mien://runs", folder=mines, code=2
    )

    assert "mine://NAME" in result.stderr
    assert "postgresql://user@host/database" in result.stderr
    assert "Did you mean 'mine'?" in result.stderr


def test_a_store_that_does_not_exist_is_refused(
    environment: Environment, mines: Path
) -> None:
    """A command that only reads makes nothing at the URL."""
    result = environment.run(
        *("flowpregel", "ls", "--store", "mine://none"),
        folder=mines,
        code=4,
        MINES=str(mines),
    )

    assert "there is no store at mine://none" in result.stderr


@pytest.fixture
def without_metadata(environment: Environment) -> Iterator[Environment]:
    """The environment, in which flowpregel has no entry points for a while."""
    (info,) = environment.packages.glob("flowpregel-*.dist-info")
    hidden = info.with_name("hidden.txt")
    (info / "entry_points.txt").rename(hidden)
    yield environment
    hidden.rename(info / "entry_points.txt")


def test_without_metadata_an_error_says_to_install_again(
    without_metadata: Environment, mines: Path
) -> None:
    """Of a URL and of a command; a folder needs no metadata."""
    url = ("flowpregel", "ls", "--store", "postgresql://user@host/runs")

    of_url = without_metadata.run(*url, folder=mines, code=2)
    of_command = without_metadata.run("flowpregel", "ui", folder=mines, code=2)
    of_folder = without_metadata.run(
        "flowpregel", "doctor", "--store", "runs.lmdb", folder=mines
    )

    assert "reinstall it" in of_url.stderr
    assert "reinstall it" in of_command.stderr
    assert "none at" in of_folder.stdout
