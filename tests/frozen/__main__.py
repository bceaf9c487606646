"""Record the digests and the store anew: ``python -m tests.frozen``.

Only a change that is meant to break every store of users may need this.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
from pathlib import Path

from flowpregel.errors import GraphInterrupt
from tests.frozen import program
from tests.frozen.digests import DIGESTS, STORE, digests


def record_store(folder: Path) -> None:
    """Run every flow of the program on a new store in *folder*."""
    flows = program.Flows(folder)
    flows.finished.run([1, 2, 3], id="finished")
    with contextlib.suppress(ValueError):
        flows.failed.run([1, 2, 3], id="failed")
    flows.squares.invoke([2, 3])
    with contextlib.suppress(GraphInterrupt):
        flows.asking.invoke("Ann", thread_id="asking")
    flows.graph.invoke({"total": 10, "log": [5]}, thread_id="graph")
    flows.store.put(("users", "ann"), "profile", {"age": 41})
    flows.close()


def main() -> None:
    DIGESTS.write_text(json.dumps(digests(), indent=0, sort_keys=True) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        record_store(Path(folder))
        with tarfile.open(STORE, "w:xz") as archive:
            # The ballast is random bytes, made again where it is missing.
            for name in ("data.mdb", "lock.mdb"):
                archive.add(Path(folder) / "store" / name, f"store/{name}")


if __name__ == "__main__":
    main()
