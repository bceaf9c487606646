"""A text with a scheme is the URL of a database or an error, and never the name of a
folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import flowpregel
from flowpregel.cache.lmdb import LMDBCache
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.store.lmdb import LMDBStore

UNKNOWN = (
    "sqlight:///x.db",
    "mysql://me:secret@db/x",
    "s3:bucket",
    "redis://db",
    "PSQL://db",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@task
def double(n: int) -> int:
    """Return *n* twice."""
    return 2 * n


def as_checkpointer(location: Any) -> None:
    """Run a workflow on a store."""

    @entrypoint(checkpointer=location, executor="inline")
    def flow(n: int) -> int:
        return double(n).result()

    flow.invoke(1, thread_id="a")


def as_cache(location: Any) -> None:
    """Run a workflow with a cache."""

    @entrypoint(cache=location, executor="inline")
    def flow(n: int) -> int:
        return double(n).result()

    flow.invoke(1)


def as_map_store(location: Any) -> None:
    """Keep the results of a `map`."""
    flowpregel.map(double.func, [1], store=location, id="a", executor="inline")


DOORS = (as_checkpointer, as_cache, as_map_store, LMDBSaver, LMDBStore, LMDBCache)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("location", UNKNOWN)
def test_an_unknown_scheme_is_an_error(
    here: Path, location: str, door: Callable[[Any], Any]
) -> None:
    """The error names the known scheme and no password, and nothing is made."""
    with pytest.raises(
        ConfigurationError, match="postgresql://user@host/database"
    ) as caught:
        door(location)

    assert "secret" not in str(caught.value)
    assert [] == [*here.iterdir()]


@pytest.mark.parametrize("command", [["ls"], ["doctor"], ["show", "a"], ["ui"]])
def test_a_command_refuses_an_unknown_scheme(command: list[str]) -> None:
    words = [*command, "sqlight:///x.db"] if command == ["ui"] else command
    option = [] if command == ["ui"] else ["--store", "sqlight:///x.db"]

    result = CliRunner().invoke(app, [*words, *option])

    assert 2 == result.exit_code, result.output
    assert "postgresql://user@host/database" in result.output


def test_a_file_url_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match="without 'file:'"):
        LMDBSaver("file:///tmp/runs.lmdb")


def test_a_url_of_postgresql_needs_its_slashes() -> None:
    with pytest.raises(
        ConfigurationError, match="write postgresql://user@host/database"
    ):
        as_checkpointer("postgresql:/runs")


def test_a_class_for_folders_refuses_a_database() -> None:
    with pytest.raises(ConfigurationError, match="PostgresSaver"):
        LMDBSaver("postgresql://db/runs")


@pytest.mark.parametrize(
    "location", ["./sqlite:x", Path("sqlite:x"), "C:\\runs", "runs.d/a:b"]
)
def test_a_path_may_have_a_colon(here: Path, location: str | Path) -> None:
    """Behind a slash, in a path object, or behind the letter of a drive."""
    as_checkpointer(location)

    assert (here / location / "data.mdb").is_file()
