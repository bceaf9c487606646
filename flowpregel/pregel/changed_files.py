"""The files whose content has changed since a run used them."""

from __future__ import annotations

from collections.abc import Iterable

from flowpregel._core.files import FileContent, changed_files, file_content
from flowpregel._pickling.file_digests import file_digest


def changes_since(recorded: Iterable[FileContent]) -> list[str]:
    """Return a line of text for each of the recorded files whose content has changed.

    A file that cannot be read is left out, because it has no content to compare, and no
    new result could be computed from it. If a path was recorded with several contents,
    because the run itself wrote to the file, a file with any of these contents is
    unchanged.
    """
    contents: dict[str, list[FileContent]] = {}
    for content in recorded:
        versions = contents.setdefault(content[0], [])
        versions.append(content)
    texts = []
    for path, versions in contents.items():
        try:
            digest, state = file_digest(path)
        except OSError:
            continue
        present = file_content(
            path,
            digest,
            state.size,
        )
        if present in versions:
            continue
        changes = changed_files(
            versions[-1:],
            [present],
        )
        for _, text in changes:
            texts.append(text)
    return texts
