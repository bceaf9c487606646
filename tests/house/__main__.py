"""Report sizes, breaches of the rules and the three trips: ``python -m tests.house``.

``-v`` lists the functions that each trip passes through, ``--breaches`` the breaches,
and ``--shrink`` lowers the counts of the breaches that are left.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from tests.house import rules, trips
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


def report_breaches(*, with_lines: bool) -> None:
    """Print how often each rule is broken, and where if *with_lines*."""
    files = rules.sources()
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for source in files:
        for rule, breaches in rules.breaches(source).items():
            lines[rule] += breaches
    package = rules.package_sources()
    lines["shared_function_name"] += rules.shared_function_names(package)
    for room, tenths in rules.dense_rooms(package).items():
        lines["dense_room"] += [
            f"{room}: {rules.DENSITY + tenths / 10:.1f} tokens a code line"
        ]
    for rule, breaches in sorted(lines.items(), key=lambda item: -len(item[1])):
        print(f"{len(breaches):5}  {rule}")
        for line in breaches if with_lines else ():
            print(f"       {line}")


def main(words: list[str]) -> None:
    """Print what the words of a command line ask for."""
    if "--shrink" in words:
        for rule, count in rules.shrink().most_common():
            print(f"{count:5}  {rule}")
        return
    if "--breaches" in words:
        report_breaches(with_lines=True)
        return
    report_rooms()
    report_breaches(with_lines=False)
    trips.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
