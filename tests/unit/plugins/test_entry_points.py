"""The look-up of plug-ins by the metadata of installed packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel import _entry_points
from flowpregel._entry_points import EXECUTORS, STORES, load_plugin, plugin_names
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.by_name import check_executor, executor_named


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, whose metadata are read anew."""
    monkeypatch.syspath_prepend(tmp_path)
    forget_metadata()
    yield tmp_path
    forget_metadata()


def forget_metadata() -> None:
    """Have the metadata of all packages read again, as in a new program."""
    importlib.invalidate_caches()
    _entry_points._entry_points.cache_clear()  # noqa: SLF001 - as in a new program


def install(packages: Path, name: str, group: str, line: str, extra: str = "") -> None:
    """Write the metadata of a package with one entry point."""
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{extra}"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")
    # An OS thread of an earlier test may have read the folder before.
    forget_metadata()


def test_a_plugin_is_the_value_of_its_entry_point(packages: Path) -> None:
    install(packages, "mine", EXECUTORS, "mine = math:sqrt")

    assert "mine" in plugin_names(EXECUTORS)
    assert 3 == load_plugin(EXECUTORS, "mine")(9)


def test_a_name_of_two_packages_is_refused(packages: Path) -> None:
    """The error names both, since neither is the right one."""
    install(packages, "mine", STORES, "mine = math:sqrt")
    install(packages, "yours", STORES, "mine = math:floor")

    with pytest.raises(ConfigurationError, match="mine and yours both declare 'mine'"):
        load_plugin(STORES, "mine")


def test_a_plugin_that_lacks_a_package_names_its_extra(packages: Path) -> None:
    """An extra of the plug-in's name is what installs the package. No other test has
    this name, because a program connects to each URL once.
    """
    extra = "Provides-Extra: torn\n"
    install(packages, "mines", EXECUTORS, "torn = no_such_package:connect", extra)

    with pytest.raises(ExecutorUnavailableError, match=r"pip install 'mines\[torn\]'"):
        executor_named("torn://east")


def test_an_unknown_executor_is_told_with_those_that_are_known(packages: Path) -> None:
    """By their names, and the closest of the plug-ins."""
    install(packages, "mine", EXECUTORS, "mine = math:sqrt")

    with pytest.raises(
        ConfigurationError, match=r"'mine://\.\.\.'.*Did you mean 'mine'"
    ):
        check_executor("mien://east")


def test_an_executor_may_be_named_without_a_url(packages: Path) -> None:
    install(packages, "mine", EXECUTORS, "mine = math:sqrt")

    assert "mine" == check_executor("mine")


def test_a_program_without_plugins_reads_no_metadata(tmp_path: Path) -> None:
    """Neither the import of the package nor a store in a folder does."""
    program = (
        "from flowpregel import entrypoint, task\n"
        "@task\n"
        "def double(n):\n"
        "    return 2 * n\n"
        "@entrypoint(checkpointer='runs.lmdb', executor='inline')\n"
        "def flow(n):\n"
        "    return double(n).result()\n"
        "assert 2 == flow.run(1, id='a')\n"
        "from flowpregel._entry_points import _entry_points\n"
        "assert 0 == _entry_points.cache_info().misses\n"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}

    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True
    )
