"""Build the distributions, and check what is in them: ``tox -e package``.

The wheel is built from the source distribution, as an installer would. It is installed
in an environment that has nothing else, and runs the README's program there, then the
command that prints the documentation. With ``--release`` the distributions are left in
``dist``; the addresses in ``pyproject.toml`` must be filled in then, and the pages must
mark the figures that are older than the code.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from email.message import Message
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from tests.benchmarks import origins

ROOT = Path(__file__).parents[2]
RESULTS = "docs/explanation/figures/benchmarks.json"
METADATA_VERSION = "2.4"
NAMES = ("repository", "documentation", "security")
"""The addresses that a release needs."""
EXAMPLE = "https://example.org/project"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"'([^']+\.md)'")
LINK = re.compile(r"\]\(([^)\s]+)\)")
BUILD_FILES = (
    "LICENSE",
    "README.md",
    "flowpregel/__init__.py",
    "pyproject.toml",
    "tests/package/metadata.py",
    "tests/package/pages.py",
)
"""The files that the build of the metadata reads."""


def missing_addresses(root: Path) -> list[str]:
    """Return the names of the addresses in ``pyproject.toml`` that a release still
    lacks.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    addresses = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["addresses"]
    return [name for name in NAMES if not addresses[name].startswith("https://")]


def marks_older_figures(root: Path) -> bool:
    """Return whether the pages were last written with the code of the package as it
    is, so that they mark every figure that is older.
    """
    results = json.loads((root / RESULTS).read_text("utf-8"))
    return bool(results["written"]["package"] == origins.package_digest(root))


def page_of(metadata: Any) -> str:
    """Return the README in metadata, as an index shows it."""
    return str(metadata.get_payload() or metadata["Description"])


def mistakes_in(metadata: Any, *, release: bool) -> list[str]:
    """Return what is wrong with the metadata of a wheel."""
    mistakes = []
    if metadata["Metadata-Version"] != METADATA_VERSION:
        mistakes.append(f"the metadata has version {metadata['Metadata-Version']}")
    links = LINK.findall(page_of(metadata))
    if any(link.startswith("repository:") for link in links):
        mistakes.append("a link of the README has no address")
    if release:
        urls = metadata.get_all("Project-URL") or []
        labels = {url.partition(",")[0].lower() for url in urls}
        mistakes += [f"there is no URL {name}" for name in NAMES if name not in labels]
        mistakes += [
            f"a link of the index page is not absolute: {link}"
            for link in links
            if not link.startswith(("https://", "#"))
        ]
    return mistakes


def rehearse_release(folder: Path) -> list[str]:
    """Return what would be wrong with the metadata of a release whose addresses are
    filled in.
    """
    from build.util import project_wheel_metadata

    for name in BUILD_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    project = folder / "pyproject.toml"
    text = project.read_text("utf-8")
    for name in NAMES:
        text = re.sub(rf'^{name} = ""', f'{name} = "{EXAMPLE}"', text, flags=re.M)
    project.write_text(text, "utf-8")
    return mistakes_in(project_wheel_metadata(folder), release=True)


def metadata_of(wheel: Path) -> Message:
    """Return the metadata in a wheel."""
    with ZipFile(wheel) as archive:
        (name,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        )
        return email.message_from_bytes(archive.read(name))


def missing_pages(wheel: Path) -> list[str]:
    """Return the pages of the documentation that a wheel lacks."""
    docs = ROOT / "docs"
    navigation = tomllib.loads((docs / "zensical.toml").read_text("utf-8"))
    names = PAGE.findall(str(navigation["project"]["nav"]))
    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
    return [name for name in names if f"flowpregel/_docs/{name}" not in files]


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, and show it. End this program if it fails."""
    print("+", *command, flush=True)
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run([*command], cwd=cwd, env=environment, check=False)
    if result.returncode:
        sys.exit(f"failed: {command[0]} ended with exit code {result.returncode}")


def run_readme(wheel: Path, folder: Path) -> None:
    """Install a wheel in an environment of its own, and run the README's program."""
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)
    # The program is copied from the page of the index.
    program = folder / "readme.py"
    program.write_text("\n".join(BLOCK.findall(page_of(metadata_of(wheel)))), "utf-8")
    run(python, "-W", "error", program, cwd=folder)
    # The documentation is in the wheel, and the command finds it there.
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli]", cwd=folder)
    run(python, "-m", "flowpregel", "docs", "how-to/retry", cwd=folder)


def build(folder: Path, *, release: bool) -> list[Path]:
    """Build the distributions in *folder*, check them, and return their paths."""
    distributions = folder / "dist"
    run(sys.executable, "-m", "build", "--outdir", distributions, ROOT)
    files = sorted(distributions.iterdir())
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    mistakes = mistakes_in(metadata_of(wheel), release=release)
    mistakes += [f"the wheel lacks page {name}" for name in missing_pages(wheel)]
    mistakes += rehearse_release(folder / "rehearsal")
    if mistakes:
        sys.exit("\n".join(mistakes))
    run_readme(wheel, folder)
    return files


def main() -> None:
    """Build and check the distributions; exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        prog="tox -e package --", description="Build and check the distributions."
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="demand the addresses in pyproject.toml, and leave the files in dist",
    )
    release: bool = parser.parse_args().release
    if release and (missing := missing_addresses(ROOT)):
        sys.exit(
            f"a release needs an https:// address for: {', '.join(missing)}; fill them "
            "in under [tool.hatch.metadata.hooks.custom.addresses] in pyproject.toml"
        )
    if release and not marks_older_figures(ROOT):
        sys.exit(
            "the code has changed since the pages were written that mark older "
            "figures; run `python -m tests.benchmarks --docs --no-run`"
        )
    with tempfile.TemporaryDirectory() as name:
        files = build(Path(name), release=release)
        if release:
            shutil.rmtree(ROOT / "dist", ignore_errors=True)
            (ROOT / "dist").mkdir()
            for file in files:
                shutil.copy(file, ROOT / "dist")
    print("the distributions are in order")


if __name__ == "__main__":
    main()
