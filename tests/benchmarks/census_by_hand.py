"""The main job as one would write it by hand: a loop over loky's pool that keeps
nothing.

Run it with ``python tests/benchmarks/census_by_hand.py FOLDER``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import loky

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
# A worker of loky's imports what it needs by name.
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)

from census_measure import measure_file, python_files
from census_report import Census, as_page, as_text


def main() -> None:
    """Measure the files below the folder that the command line names."""
    found = Census()
    with loky.ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [
            pool.submit(measure_file, *file) for file in python_files(sys.argv[1:])
        ]
        futures.reverse()
        while futures:
            found.add(futures.pop().result())
    summary = found.summary()
    as_page(summary)
    sys.stdout.write(f"{as_text(summary)}\n")


if __name__ == "__main__":
    main()
