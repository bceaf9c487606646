"""The sources of this process's tasks and bodies, for notices and for stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowpregel._code.digest import CodeDigest

SOURCES: dict[str, str] = {}
"""The sources of the tasks and bodies of this process, by digest."""
UNSEEN: dict[str, str] = {}
"""The values whose content a digest does not include, by digest."""


def note_code(
    code: str, digests: Sequence[CodeDigest], *, has_notices: bool = True
) -> None:
    """Keep the source of the code with the digest *code*, and the values that the
    digest does not include.

    Args:
        code: The digest under which the source and the values are kept.
        digests: The digests that *code* was computed from.
        has_notices: True if a run must give a notice about the values.
    """
    SOURCES[code] = "\n".join(digest.source for digest in digests)
    unseen = [value for digest in digests for value in digest.unseen]
    if unseen and has_notices:
        UNSEEN[code] = " and ".join(unseen)
