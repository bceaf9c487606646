"""Builds the documentation site as `tox -e site` does, in another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.site.markdown import write_pages

ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """A site that was built, and what the build has printed."""

    folder: Path
    output: str
    exit_code: int

    def pages(self) -> list[Path]:
        """Return the HTML files of the site."""
        return sorted(self.folder.rglob("*.html"))


def build(folder: Path) -> Site:
    """Build the site from a copy of the docs in *folder*."""
    shutil.copytree(
        ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("site", ".cache")
    )
    for name in ("flowpregel", "tests"):
        (folder / name).symlink_to(ROOT / name)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "zensical", "build", "--clean", "--strict"),
            *("--config-file", "docs/zensical.toml"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    site = folder / "docs" / "site"
    write_pages(site)
    return Site(site, result.stdout, result.returncode)
