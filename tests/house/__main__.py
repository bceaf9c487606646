"""Report the size of every room and the length of the three trips: ``python -m
tests.house``.

``-v`` lists the functions that each trip passes through.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from tests.house import trips
from tests.house.measure import PACKAGE, code_lines, code_tokens, package_files


def report_rooms() -> None:
    """Print the files, code lines, tokens and tokens a line of each folder of the
    package.
    """
    sizes: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for file in package_files():
        source = file.read_text(encoding="utf-8")
        for room in (file.parent.relative_to(PACKAGE).as_posix(), "all"):
            size = sizes[room]
            size[0] += 1
            size[1] += code_lines(source)
            size[2] += code_tokens(source)
    print(f"{'room':32} files   lines  tokens  tokens/line")
    for room, (files, lines, tokens) in sorted(
        sizes.items(), key=lambda item: item[1][2]
    ):
        print(
            f"{room:32} {files:5} {lines:7} {tokens:7}  {tokens / max(lines, 1):5.1f}"
        )


if __name__ == "__main__":
    report_rooms()
    trips.main(sys.argv[1:])
