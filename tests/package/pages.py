"""The part of the build that puts the documentation into the wheel, where the command
`flowpregel docs` finds it.

A plain `force-include` of the folder would take its pictures and the built site along,
and would leave a copy of the pages in each editable installation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "flowpregel/_docs"
PATTERNS = ("**/*.md", "llms.txt", "zensical.toml")
NOT_PAGES = ("site", ".cache")
"""The folders that a build of the documentation site leaves behind."""


def files_of(docs: Path) -> dict[str, str]:
    """Return the path in the wheel of each file of the documentation, by its path."""
    files = [file for pattern in PATTERNS for file in docs.glob(pattern)]
    names = {file: file.relative_to(docs) for file in files}
    return {
        str(file): f"{TARGET}/{name.as_posix()}"
        for file, name in sorted(names.items())
        if name.parts[0] not in NOT_PAGES
    }


class PageHook(BuildHookInterface[Any]):
    """The hook that hatchling calls before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages to a wheel. An editable installation reads them in the
        checkout.
        """
        if version != "editable":
            build_data["force_include"].update(files_of(Path(self.root, "docs")))
