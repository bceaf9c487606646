"""Keep a store of this release for those to come: ``python -m tests.releases.make``.

Run it once for each release that changes what is written; it refuses to write over
the store of an earlier one.
"""

from __future__ import annotations

import lzma
import os
import sys
import tempfile
from pathlib import Path

from flowpregel import __version__
from flowpregel._lmdb.seal import FORMAT

HERE = Path(__file__).parent


def main() -> int:
    """Write ``format-<format>-<version>.mdb.xz`` beside this file; return the exit status."""
    target = HERE / f"format-{FORMAT}-{__version__}.mdb.xz"
    if target.exists():
        print(f"{target.name} is there already: a release's store is written once")
        return 1
    from tests.releases.contents import KEY, fill

    os.environ["FLOWPREGEL_STORE_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        fill(path)
        packed = lzma.compress((path / "data.mdb").read_bytes(), preset=9)
    target.write_bytes(packed)
    print(f"{target.name}: {len(packed)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
