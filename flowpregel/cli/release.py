"""Which release this is."""

from __future__ import annotations

import sys


def release() -> str:
    """Return the version of the package.

    Looked up, not imported: the package's front offers every floor's names, and
    whoever imports it would stand above them all.
    """
    return str(sys.modules["flowpregel"].__version__)
