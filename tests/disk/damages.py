"""Damages to the file of a store, and what becomes of them."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

from tests.disk import workloads
from tests.disk.nursery import Nursery
from tests.disk.workloads import NAMED, RIGHT

ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
PAGE = 4096
STRIDE = 16 if ALL else 384
"""A bit in so many bytes is flipped: one after the other, at any place of them."""
HEADER = 96
"""Bytes at the start of a page, of which more are flipped: its header, where its
records lie.
"""


def flips(data: bytes) -> list[tuple[int, bytes]]:
    """Return where bits are flipped, and what stands there then."""
    luck = random.Random(7)
    used = [at for at in range(0, len(data), PAGE) if any(data[at : at + PAGE])]
    places = [
        min(at + offset + luck.randrange(STRIDE), len(data) - 1)
        for at in used
        for offset in range(0, PAGE, STRIDE)
    ]
    places += [
        at + luck.randrange(HEADER) for at in used for _ in range(HEADER * 8 // STRIDE)
    ]
    return [(at, bytes([data[at] ^ 1 << luck.randrange(8)])) for at in places]


AT_ONCE = 500
"""The number of damages that one process looks at: it has two minutes, and all of them
take longer on a busy machine.
"""


def judged(
    nursery: Nursery, path: Path, damages: list[tuple[int, bytes]], *, check_pages: bool
) -> tuple[Counter[str], list[str]]:
    """Count what the damages come to, and return those after which something is
    wrong.
    """
    right, log = workloads.read_all(str(path)), Path(f"{path}.looked")
    file = workloads.file_of(path)
    whole = file.read_bytes()
    counts: Counter[str] = Counter()
    bad = []
    while damages:
        log.write_text("")
        some = damages[:AT_ONCE]
        ended = nursery.run(
            workloads.look_at_damage, str(path), some, right, check_pages
        )
        outcomes = log.read_text().splitlines()
        if ended.status:
            outcomes.append(
                f"ended with {ended.status} {str(ended.result or '')[-200:]}"
            )
            file.write_bytes(whole)
        for (at, data), outcome in zip(some, outcomes, strict=False):
            counts[outcome] += 1
            if outcome not in (RIGHT, NAMED):
                bad.append(
                    f"page {at // PAGE}, byte {at % PAGE}, {whole[at]} -> {data!r}: "
                    f"{outcome}"
                )
        damages = damages[len(outcomes) :]
    print(dict(counts))
    return counts, bad
