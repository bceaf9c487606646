"""The sources of this process's tasks and workflow bodies. Notices about changed code
show them, and stores record them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowpregel._code.parts import parts_record

if TYPE_CHECKING:
    from flowpregel._code.digest import CodeDigest

SOURCES: dict[str, str] = {}
"""The sources of the tasks and workflow bodies of this process, by the digest of the
code, and the records of their parts (`parts_record`), by `parts_key`.
"""
UNSEEN: dict[str, str] = {}
"""The names of the values whose content is not included in the digest of some code, by
the digest of the code.
"""


def parts_key(code: str) -> str:
    """Return the key under which the record of the parts of code is stored.

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
        digests: The code digests from which *code* was computed.
        has_notices: True if a run must give a notice about the values.
    """
    SOURCES[code] = "\n".join(digest.source for digest in digests)
    parts = [part for digest in digests for part in digest.named_parts]
    SOURCES[parts_key(code)] = parts_record(parts)
    unseen = [value for digest in digests for value in digest.unseen]
    if unseen and has_notices:
        UNSEEN[code] = " and ".join(unseen)
