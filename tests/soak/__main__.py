"""``python -m tests.soak --minutes 10 --seed 1``: random programs under random faults.

Programs run on one store, three at a time, each attempt in a process of its own. They
are killed, their workers too, interrupted by Ctrl-C, stopped, and find the disk full or
read-only. When an attempt has ended, another goes on, until all have come to their end;
then the journals are checked, and the store. The exit status is 1 if a promise did not
hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.soaking import soak


def main(arguments: list[str] | None = None) -> int:
    """Soak, print what was done and found, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where to work (default: a temporary folder)")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flowpregel-soak-") as temporary:
        folder = Path(asked.folder or temporary)
        report = soak(folder, seconds=60 * asked.minutes, seed=asked.seed)
        print(report)
        return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
