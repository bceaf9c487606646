"""What a disk may hold after a power cut, rebuilt from the calls that a process made.

What was written and not yet synced is on the disk or not, each sector or page of it
on its own: the kernel and the drive write in any order. So a run has very many
images; they are sampled at each moment where something is synced or acknowledged.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WRITE, SYNC, RENAME, UNLINK, TRUNCATE, MARK = range(1, 7)
SECTOR, PAGE = 512, 4096
_HEAD = struct.Struct("<BBHIQQQ")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that changed a file, or a mark."""

    op: int
    synced: bool
    path: str
    inode: int
    offset: int
    data: bytes


def calls_of(log: Path) -> Iterator[Call]:
    """Yield what a process of the nursery did, in order."""
    data = log.read_bytes()
    at = 0
    while at < len(data):
        op, synced, _, path_length, inode, offset, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        path = data[at : at + path_length].decode()
        at += path_length
        yield Call(op, bool(synced), path, inode, offset, data[at : at + length])
        at += length


@dataclass
class File:
    """A file: what of it is on disk for certain, and what may be."""

    path: str
    named: bool = False
    """Whether its name is on disk for certain."""
    kept: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    unlinked: bool = False
    """Whether its name was removed, which is not yet on disk for certain."""

    def sync(self) -> None:
        """All that was written is on disk."""
        for offset, data in self.pending:
            put(self.kept, offset, data)
        self.pending.clear()


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Write *data* into a file's content; a hole before it is zeros."""
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


@dataclass(frozen=True, slots=True)
class Image:
    """A disk after a power cut."""

    files: dict[str, bytes]
    acknowledged: int
    """The last number that was acknowledged before; -1: none."""

    def write(self, folder: Path, was: str) -> None:
        """Put the files, whose names begin with *was*, into *folder*."""
        for path, content in self.files.items():
            target = folder / os.path.relpath(path, was)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


class Disk:
    """A disk that is told the calls of a process, and asked what it may hold.

    Args:
        luck: Chooses what is on disk.
        samples: How many images are taken at each moment.
        before: The files that were there, safe on disk.
    """

    def __init__(
        self, luck: random.Random, samples: int, before: dict[int, tuple[str, bytes]]
    ) -> None:
        self._luck = luck
        self._samples = samples
        self._files = {
            inode: File(path, True, bytearray(content))
            for inode, (path, content) in before.items()
        }
        self._renamed: list[tuple[str, str]] = []
        """Renames that may be lost."""
        self._acknowledged = -1

    def images(self, calls: Iterator[Call]) -> Iterator[Image]:
        """Yield what may be on disk if the power is cut while *calls* are made."""
        for call in calls:
            if call.op == MARK:
                self._acknowledged = int(call.data)
            if call.op == WRITE:
                self._file(call).pending.append((call.offset, call.data))
            if call.op in (SYNC, MARK, RENAME) or call.synced:
                yield from self._possible()
            self._settle(call)
        yield from self._possible()

    def _settle(self, call: Call) -> None:
        """Take in what is certain once *call* has returned."""
        if call.op == WRITE and call.synced:
            file = self._file(call)
            file.pending.pop()
            put(file.kept, call.offset, call.data)
        elif call.op == TRUNCATE:
            file = self._file(call)
            file.sync()
            del file.kept[call.offset :]
        elif call.op == RENAME:
            self._renamed.append((call.path, call.data.decode()))
        elif call.op == SYNC and call.inode in self._files:
            self._files[call.inode].sync()
        elif call.op == SYNC:
            self._settle_folder(call.path)
        elif call.op == UNLINK:
            for file in self._files.values():
                file.unlinked |= file.path == call.path

    def _settle_folder(self, path: str) -> None:
        """Take in what is certain once the folder at *path* was synced."""
        for rename in [r for r in self._renamed if os.path.dirname(r[1]) == path]:
            self._renamed.remove(rename)
            self._apply(rename)
        for inode, file in [*self._files.items()]:
            if os.path.dirname(file.path) == path:
                file.named = True
                if file.unlinked:
                    del self._files[inode]

    def _file(self, call: Call) -> File:
        path = call.path
        for old, new in self._renamed:  # what has a new name may lose it again
            if path.startswith(new + "/") or path == new:
                path = old + path.removeprefix(new)
        return self._files.setdefault(call.inode, File(path))

    def _apply(self, rename: tuple[str, str]) -> None:
        old, new = rename
        if any(file.path == old for file in self._files.values()):
            self._files = {
                inode: f for inode, f in self._files.items() if f.path != new
            }
        for file in self._files.values():
            file.path = _renamed(file.path, rename)

    def _possible(self) -> Iterator[Image]:
        pending = any(
            file.pending or not file.named or file.unlinked
            for file in self._files.values()
        )
        if not pending and not self._renamed:
            yield self._image(1.0, PAGE)
            return
        for share in (0.0, 1.0):
            yield self._image(share, PAGE)
        for _ in range(self._samples):
            unit = self._luck.choice([SECTOR, PAGE])
            yield self._image(self._luck.choice([0.05, 0.5, 0.95]), unit)

    def _image(self, share: float, unit: int) -> Image:
        """Return one image: of what is pending, *share* is there, each *unit* by
        luck.
        """
        luck = self._luck
        renames = [rename for rename in self._renamed if luck.random() < share]
        files = {}
        for file in self._files.values():
            path = file.path
            for rename in renames:
                path = _renamed(path, rename)
            if path == file.path and not file.named and luck.random() >= share:
                continue
            if file.unlinked and luck.random() < share:
                continue
            content = bytearray(file.kept)
            for offset, data in file.pending:
                for at in range(0, len(data), unit):
                    if luck.random() < share:
                        put(content, offset + at, data[at : at + unit])
            # What is renamed comes after what it takes the place of.
            files[path] = bytes(content)
        return Image(files, self._acknowledged)


def _renamed(path: str, rename: tuple[str, str]) -> str:
    old, new = rename
    if path == old or path.startswith(old + "/"):
        return new + path.removeprefix(old)
    return path
