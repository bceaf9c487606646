"""Wheels that are written by hand, and environments that have them installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[3]
EntryPoints = Mapping[str, Mapping[str, str]]


def write_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    entry_points: EntryPoints,
    metadata: str = "",
) -> Path:
    """Write the wheel of a distribution to *folder*, and return its path."""
    info = f"{name}-1.0.dist-info"
    sections = []
    for group, names in entry_points.items():
        lines = "".join(f"{key} = {value}\n" for key, value in names.items())
        sections.append(f"[{group}]\n{lines}")
    contents = dict(files)
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}".encode()
    )
    contents[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n"
    )
    contents[f"{info}/entry_points.txt"] = "\n".join(sections).encode()
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    contents[f"{info}/RECORD"] = record.encode()
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path, data in contents.items():
            archive.writestr(path, data)
    return wheel


def write_own_wheel(folder: Path) -> Path:
    """Write a wheel of this working copy, with the entry points that it declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    entry_points = {**project["entry-points"], "console_scripts": project["scripts"]}
    extras = project["optional-dependencies"]
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in (ROOT / "flowpregel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    metadata = "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    return write_wheel(folder, "flowpregel", files, entry_points, metadata)


class Environment:
    """A virtual environment beside that of the tests, whose packages it can import.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        """The folder of its programs."""
        (self.packages,) = folder.glob("lib/python*/site-packages")
        # The packages that flowpregel needs, after those of this environment.
        others = [path for path in sys.path if path.endswith("site-packages")]
        (self.packages / "others.pth").write_text("\n".join(others) + "\n")

    def install(self, *wheels: Path) -> None:
        """Install wheels, without the network."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile"]
        # A distribution of the same name among the others is not to be uninstalled.
        options += ["--ignore-installed", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *options, *wheels], check=True)

    def run(
        self, *command: str, folder: Path, code: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in *folder*, and check its exit code."""
        environment = {**os.environ, **variables}
        environment.pop("PYTHONPATH", None)
        result = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert code == result.returncode, result.stdout + result.stderr
        return result
