"""The sources of this process's tasks and bodies, which notices show and stores
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowpregel._code.parts import parts_record

if TYPE_CHECKING:
    from flowpregel._code.digest import CodeDigest

SOURCES: dict[str, str] = {}
"""The sources of the tasks and bodies of this process by digest, and the records of
their parts (`parts_record`) by `parts_key`.
"""
UNSEEN: dict[str, str] = {}
"""The names of the values whose content a digest does not include, by digest."""


def parts_key(code: str) -> str:
    """Return the key under which the parts of code are stored, beside its source.

    Args:
        code: The digest of the code.
    """
    return f"{code}/parts"


def note_code(
    code: str, digests: Sequence[CodeDigest], *, has_notices: bool = True
) -> None:
    """Add the source of the code with the digest *code* to `SOURCES`, and the values
    that the digest does not include to `UNSEEN`.

    Args:
        code: The digest under which the source and the values are found.
        digests: The digests that *code* was computed from.
        has_notices: True if a run must give a notice about the values.
    """
    SOURCES[code] = "\n".join(digest.source for digest in digests)
    parts = [part for digest in digests for part in digest.named_parts]
    SOURCES[parts_key(code)] = parts_record(parts)
    unseen = [value for digest in digests for value in digest.unseen]
    if unseen and has_notices:
        UNSEEN[code] = " and ".join(unseen)
