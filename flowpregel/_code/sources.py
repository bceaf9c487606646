"""The sources of the code of this process, for notices and for what a store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowpregel._code.digest import CodeDigest

SOURCES: dict[str, str] = {}
"""The sources of the tasks and bodies of this process, by digest."""
UNSEEN: dict[str, str] = {}
"""The values whose content a digest does not see, by digest, if there are any."""


def note_code(
    code: str, digests: Sequence[CodeDigest], *, has_notices: bool = True
) -> None:
    """Keep the source of *code* to be shown, and what its digest does not see.

    Args:
        code: The digest under which they are kept.
        digests: The digests that *code* is made of.
        has_notices: Whether a run gives a notice of what *code* does not see.
    """
    SOURCES[code] = "\n".join(digest.source for digest in digests)
    unseen = [value for digest in digests for value in digest.unseen]
    if unseen and has_notices:
        UNSEEN[code] = " and ".join(unseen)
