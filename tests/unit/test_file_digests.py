"""Digests of files, which are taken again only if the state of the file has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flowpregel._core.previews import MOST_OUTPUT_BYTES, output_fields, outputs_in
from flowpregel._pickling.file_digests import (
    FileState,
    WrittenFile,
    file_digest,
    has_recorded_content,
    note_output,
    present_or_recorded_digest,
    present_state,
    written_file,
)

LONG_AGO = 1_700_000_000_123_456_789
"""Wall-clock nanoseconds."""


def written(path: Path, content: str, at: int = LONG_AGO) -> Path:
    path.write_text(content)
    os.utime(path, ns=(at, at))
    return path


def record(path: Path, digest: str = "other") -> WrittenFile:
    state = present_state(str(path))
    return WrittenFile(str(path), "", digest, state, is_settled=True)


def test_a_file_is_not_read_again_while_its_state_is_the_same(tmp_path: Path) -> None:
    """Its content may even change, as long as nothing shows that."""
    path = written(tmp_path / "a", "one")
    before = file_digest(str(path))
    with path.open("r+") as file:
        file.write("two")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    same = file_digest(str(path))
    os.utime(path, ns=(LONG_AGO, LONG_AGO + 1))

    assert before == same
    assert before.digest != file_digest(str(path)).digest


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Another write may follow within the resolution of the file system's times."""
    path = tmp_path / "a"
    later = 4_000_000_000_123_456_789
    written(path, "one", later)
    before = file_digest(str(path))
    with path.open("r+") as file:
        file.write("two")
    os.utime(path, ns=(later, later))

    assert before.digest != file_digest(str(path)).digest


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_recorded_output_is_not_read(tmp_path: Path, is_settled: bool) -> None:
    """Unless a change may not show in its state."""
    path = written(tmp_path / "a", "one")
    output = record(path)._replace(is_settled=is_settled)

    note_output(output, str(path))

    assert is_settled == ("other" == file_digest(str(path)).digest)


def test_the_digest_of_an_output_outlives_the_file(tmp_path: Path) -> None:
    """That of another file does not."""
    path = written(tmp_path / "a", "one")
    other = written(tmp_path / "b", "one")
    output = written_file(str(path), "")
    note_output(output, str(path))
    path.unlink()
    other.unlink()

    assert output.digest == present_or_recorded_digest(str(path)).digest
    with pytest.raises(FileNotFoundError):
        present_or_recorded_digest(str(other))


def test_a_content_is_compared_by_size_and_time_first(tmp_path: Path) -> None:
    """A file that was only touched is read, and so is no file of another size."""
    path = written(tmp_path / "a", "one")
    untouched = record(path)
    real = written_file(str(path), "")
    is_same = has_recorded_content(untouched, str(path))
    os.utime(path, ns=(LONG_AGO, LONG_AGO + 1))

    assert is_same
    assert has_recorded_content(real, str(path))
    assert not has_recorded_content(untouched, str(path))
    assert not has_recorded_content(real, str(written(path, "four")))


def test_a_file_in_place_of_a_folder_is_changed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    output = written_file(str(tmp_path / "a"), "")
    (tmp_path / "a").rmdir()

    assert not has_recorded_content(output, str(written(tmp_path / "a", "")))


def test_a_preview_contains_the_outputs_that_fit() -> None:
    """And the number of the others. Bytes that are not UTF-8 are not lost."""
    state = FileState(1, 2, LONG_AGO, "")
    output = WrittenFile("caf\udce9.csv", "/data", "0" * 128, state, is_settled=True)

    preview = b'{"r":1' + output_fields([output] * 1_000) + b"}"
    found = outputs_in(preview)

    assert len(preview) <= MOST_OUTPUT_BYTES + 30
    assert 1 == json.loads(preview)["r"]
    assert 1_000 == len(found.files) + found.unrecorded
    assert 100 < len(found.files)
    assert {output} == set(found.files)
    assert b"" == output_fields([])


@pytest.mark.parametrize(
    "preview",
    [
        b"",
        b'{"a":{"n":3}}',
        b'{"a":{"o":["<list of 3>"]}}',
        b'{"o":[["a.csv"]]}',
        b'{"o":[',
        '{"a":{"n":"\\"o\\":["}}',
    ],
)
def test_other_previews_have_no_outputs(preview: bytes | str) -> None:
    """Such as those of earlier and later versions."""
    assert 0 == len(outputs_in(preview).files)
