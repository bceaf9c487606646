"""The versions of packages that a machine and its coordinator compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowpregel.executors.cluster.package_versions import (
    installed_packages,
    pack_contents,
    package_differences,
    read_contents,
    versions_of,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with installed packages at the beginning of the path."""
    for name in ("Made.Up-1.2", "PyYAML-0.1", "broken"):
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "made_up.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "no_such_folder")
    return tmp_path


def test_versions_are_those_in_the_names_of_folders() -> None:
    """As `importlib.metadata` reads them, whatever separators a name has."""
    installed = installed_packages()

    assert "1.2" == installed["made_up"]
    assert "broken" not in installed


def test_the_first_folder_of_the_path_has_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "newer"
    (newer / "made_up-1.3.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(newer)

    assert "1.3" == installed_packages()["made_up"]


def test_packages_are_found_by_their_modules() -> None:
    """Also if the module has another name. cloudpickle always counts."""
    versions = versions_of({"made_up", "yaml", "sys", "_no_such_module", "flowpregel"})

    assert ["cloudpickle", "made_up", "pyyaml"] == list(versions)


def test_a_machine_answers_without_importing() -> None:
    """The module would raise an error."""
    (packed,) = pack_contents(["made_up", "absent"], ["made_up", "no_such_module"])
    contents = read_contents(packed)

    assert {"made_up": "1.2"} == contents.packages
    assert ["made_up"] == contents.modules


def test_packages_that_a_machine_lacks_are_no_difference() -> None:
    """A task need not use all that its program has imported."""
    here = {"a": "1", "b": "1", "c": "1"}

    assert ["b 2 (here 1)"] == package_differences(here, {"a": "1", "b": "2"})
