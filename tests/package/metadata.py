"""The part of the build that puts the addresses of the release into the metadata.

The addresses stand in ``pyproject.toml``, and may be empty until a release is built.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

NAMES = ("repository", "documentation", "security")
LINK = "](repository:"
"""The beginning of a link of the README to a file of the repository, as
hatch-fancy-pypi-readme has rewritten it.
"""


def addresses_in(root: str | Path) -> dict[str, str]:
    """Return the addresses in the ``pyproject.toml`` of a source tree that are filled
    in, by name.
    """
    project = tomllib.loads(Path(root, "pyproject.toml").read_text("utf-8"))
    table = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["addresses"]
    return {name: table[name].rstrip("/") for name in NAMES if table[name]}


def urls_of(addresses: dict[str, str]) -> dict[str, str]:
    """Return the URLs of the project by label."""
    urls = {name.capitalize(): address for name, address in addresses.items()}
    if "repository" in addresses:
        repository = addresses["repository"]
        urls["Changelog"] = f"{repository}/blob/main/docs/changelog.md"
        urls["Issues"] = f"{repository}/issues"
    return urls


def with_links(text: str, addresses: dict[str, str], version: str) -> str:
    """Return the README with links to the files of a version in the repository.

    Without an address the links stay relative.
    """
    repository = addresses.get("repository")
    base = f"{repository}/blob/v{version}/" if repository else ""
    return text.replace(LINK, f"]({base}")


class AddressHook(MetadataHookInterface):
    """The hook that hatchling calls after hatch-fancy-pypi-readme."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the URLs to *metadata*, and complete the links of its README."""
        addresses = addresses_in(self.root)
        metadata["urls"] = urls_of(addresses)
        readme = metadata["readme"]
        version = metadata["version"]
        readme["text"] = with_links(readme["text"], addresses, version)
