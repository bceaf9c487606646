"""The changes between the code that made a result and the present code, part by part.

::

    constant K: 1 -> 5
    function helper: its code changed: -    return 2 * n | +    return 3 * n
    version of numpy: 1.26.4 -> 2.0.1
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from flowpregel._code.parts import MOST_PARTS, CodePart, parts_in
from flowpregel._code.sources import SOURCES, parts_key
from flowpregel._core.previews import SECRET
from flowpregel._core.provenance import VERSION, first_difference

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import BaseCheckpointSaver

PartGroups: TypeAlias = Mapping[tuple[str, str], Sequence[CodePart]]
"""The parts of code by kind and name."""
_MOST_CHANGES: Final = 3
_CONSTANT_LINE: Final = re.compile(r"^[^\s:]+:\S+ = .*\n?", re.MULTILINE)
"""A pattern for the line of a constant in a stored source."""
_CODE_CHANGE: Final = re.compile("(now uses |no longer uses |)(function|class) ")
"""A pattern for the beginning of the description of a changed function or class, whose
source is shown too.
"""


def difference_in(
    saver: BaseCheckpointSaver,
    recorded: str,
    now: str,
) -> str:
    """Return the changes from the recorded code to the present code, as one string.

    They are the parts that changed and, if one of them is a function or a class, the
    first line that differs. If only the function itself changed, or the parts are not
    known, the result is only that line. It is empty if one of the sources is not known.

    Args:
        saver: The store of the recorded code.
        recorded: The digest of the recorded code.
        now: The digest of the present code.
    """
    if recorded == now:
        return ""
    versions = _versions_of_task(recorded, now)
    if versions:
        return versions
    before = saver.source_of(recorded)
    after = SOURCES.get(now, "")
    parts = saver.source_of(parts_key(recorded))
    changes = parts_that_changed(parts, now)
    if not changes:
        return first_difference(before, after)
    text = _in_one_text(changes)
    if not any(map(_CODE_CHANGE.match, changes)):
        return text
    line = first_difference(
        _CONSTANT_LINE.sub("", before),
        _CONSTANT_LINE.sub("", after),
    )
    if not line:
        return text
    if changes == [_own_change(now)]:
        return line
    return f"{text}: {line}"


def _own_change(code: str) -> str:
    """Return the description of a change in the function itself, and not in its
    helpers. If it is the only change, the notice about changed code leaves the
    description out, because the notice names the function anyway.

    Args:
        code: The digest of the code.
    """
    record = SOURCES.get(parts_key(code), "")
    own_part = parts_in(record)[0]
    _, _, name = own_part.name.rpartition(">.")
    return f"{own_part.kind} {name}: its code changed"


def changes_by_name(
    saver: BaseCheckpointSaver,
    codes: Mapping[str, tuple[str, str]],
) -> dict[str, str]:
    """Return the parts that changed, as one string for each function, by name.

    Args:
        saver: The store of the recorded code.
        codes: The recorded and the present digest of each function, by name.
    """
    texts: dict[str, str] = {}
    for name, (recorded, now) in codes.items():
        parts = saver.source_of(parts_key(recorded))
        text = changes_text(
            recorded,
            parts,
            now,
        )
        if text:
            texts[name] = text
    return texts


def changes_text(
    recorded: str,
    parts: str,
    now: str,
) -> str:
    """Return the parts that differ as one string, which is empty if the parts are not
    known.

    Args:
        recorded: The digest of the recorded code.
        parts: The record of the parts of that code.
        now: The digest of the present code.
    """
    if recorded == now:
        return ""
    versions = _versions_of_task(recorded, now)
    if versions:
        return versions
    changes = parts_that_changed(parts, now)
    return _in_one_text(changes)


def version_changes(
    saver: BaseCheckpointSaver,
    code: str,
) -> list[str]:
    """Return a description of each package whose version differs from the recorded
    version.

    Args:
        saver: The store of the recorded code.
        code: The digest of the recorded code, which is also that of the present code.
            It does not depend on the versions of packages.
    """
    parts = saver.source_of(parts_key(code))
    changes = parts_that_changed(parts, code)
    return [change for change in changes if change.startswith("version of ")]


def parts_that_changed(
    recorded: str,
    now: str,
) -> list[str]:
    """Return a description of each part that differs. The list is empty if the parts
    are not known.

    Args:
        recorded: The record of the recorded parts.
        now: The digest of the present code.
    """
    record = SOURCES.get(parts_key(now), "")
    before = parts_in(recorded)
    after = parts_in(record)
    if not (before and after):
        return []
    old_groups = _grouped_parts(before)
    new_groups = _grouped_parts(after)
    changed = [*_part_changes(old_groups, new_groups)]
    if changed or MOST_PARTS in (len(before), len(after)):
        return changed
    old_names = old_groups.keys()
    new_names = new_groups.keys()
    for kind, name in sorted(new_names - old_names):
        changed.append(f"now uses {kind} {name}")
    for kind, name in sorted(old_names - new_names):
        changed.append(f"no longer uses {kind} {name}")
    return changed


def _in_one_text(changes: Sequence[str]) -> str:
    text = "; ".join(changes[:_MOST_CHANGES])
    hidden = len(changes) - _MOST_CHANGES
    if hidden > 0:
        text += f"; and {hidden:,} more"
    return text


def _part_changes(
    before: PartGroups,
    after: PartGroups,
) -> Iterator[str]:
    """Yield a description of each part whose contents in the two records differ."""
    for key, old_parts in before.items():
        new_parts = after.get(key, old_parts)
        if new_parts == old_parts:
            continue
        old = old_parts[-1]
        new = new_parts[-1]
        for pair in zip(old_parts, new_parts, strict=False):
            if pair[0] != pair[1]:
                old, new = pair
                break
        yield _change_text(old, new)


def _grouped_parts(
    parts: Iterable[CodePart],
) -> PartGroups:
    """Return the parts by kind and name. Several parts may have the same name: modules
    may use the same names, and the names of the functions around a local definition are
    removed from its name.
    """
    names: defaultdict[tuple[str, str], list[CodePart]] = defaultdict(list)
    for part in parts:
        _, _, name = part.name.rpartition(">.")
        names[part.kind, name].append(part._replace(name=name))
    return names


def _change_text(old: CodePart, new: CodePart) -> str:
    """Return the description of a part whose content changed."""
    name = new.name
    if new.kind == "version":
        return f"version of {name}: {old.value} -> {new.value}"
    if new.kind != "constant":
        return f"{new.kind} {name}: its code changed"
    is_known = old.value is not None and new.value is not None
    is_secret = SECRET.search(name) is not None
    if is_known and not is_secret and old.value != new.value:
        return f"constant {name}: {old.value} -> {new.value}"
    return f"constant {name}: its content changed"


def _versions_of_task(recorded: str, now: str) -> str:
    """Return the change of a task's ``version=``, or an empty string without one."""
    if not (recorded.startswith(VERSION) or now.startswith(VERSION)):
        return ""
    old = _version_text(recorded)
    new = _version_text(now)
    return f"version=: {old} -> {new}"


def _version_text(code: str) -> str:
    """Return the user's version (``version=``) that is recorded in place of a code
    digest, or ``none``.
    """
    if not code.startswith(VERSION):
        return "none"
    version = code.removeprefix(VERSION)
    return repr(version)
