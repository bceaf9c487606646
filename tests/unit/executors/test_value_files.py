"""The files of stored values: their names, what they survive, and their errors."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from flowpregel import Stored, stored
from flowpregel._inspection.inert import InertCodec
from flowpregel._pickling.by_value import code_of_file
from flowpregel._pickling.digest import digest_of
from flowpregel.errors import (
    ConfigurationError,
    StoredValueError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    ValueEncodingError,
)
from flowpregel.executors import delete_stored
from flowpregel.executors.base import HOST
from flowpregel.executors.handles import stored_handles
from flowpregel.executors.value_files import (
    file_states,
    lost_files,
    missing_folder,
    sync_folder,
    value_exists,
    write_value,
)
from flowpregel.storage.codec import PythonCodec
from flowpregel.storage.drafts import sync_path

LARGE = 50_000


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of a bucket in this process's memory."""
    yield "memory://bucket/values"
    fsspec.filesystem("memory").store.clear()


class CountingFiles(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """Files in memory that counts how often one is read."""

    protocol = "counting"
    reads = 0

    def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        """Return the content of a file."""
        type(self).reads += 1
        content: bytes = super().cat_file(path, *args, **options)
        return content


def locations_of(folder: Path, thread_ids: list[str | None]) -> list[Path]:
    """Return the files in which the same value lies for each of some threads."""
    return [
        Path(write_value(1, folder, thread_id).location) for thread_id in thread_ids
    ]


VALUES = {
    "int": 7,
    "str": "ada \udc80",
    "tuple": (1, {"a": [None]}),
    "array": np.arange(LARGE),
    "strided array": np.arange(LARGE)[::2],
    "two arrays": [np.ones(LARGE), np.zeros(LARGE)],
    "bytes": bytes(LARGE),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_a_value_is_read_as_it_was_written(
    kind: str, is_remote: bool, tmp_path: Path, bucket: str
) -> None:
    """Each time as a new copy."""
    value = VALUES[kind]

    handle = stored(value, folder=bucket if is_remote else tmp_path)

    np.testing.assert_equal(handle.value, value)
    np.testing.assert_equal(handle.value, value)
    assert type(value).__name__ == handle.type_name


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_a_reader_may_write_to_its_copy(
    is_remote: bool, tmp_path: Path, bucket: str
) -> None:
    """The next reader does not see it."""
    handle = stored(np.zeros(LARGE), folder=bucket if is_remote else tmp_path)

    handle.value[:] = 1

    assert 0 == handle.value.sum()


def test_a_file_has_the_name_of_its_digest(tmp_path: Path) -> None:
    """In a folder of its thread; equal bytes are one file."""
    handles = [stored([1, 2], folder=tmp_path) for _ in range(2)]

    file = Path(handles[0].location)
    assert handles[0] == handles[1]
    assert [file] == [*tmp_path.rglob("*")][1:]
    assert file.name == handles[0].digest
    assert file.name == hashlib.sha256(file.read_bytes()).hexdigest()
    assert tmp_path / "no-thread" == file.parent
    assert file.stat().st_size == handles[0].nbytes


@pytest.mark.parametrize(
    "value", [b"some text", np.zeros(LARGE)], ids=["small", "large"]
)
def test_a_damaged_file_is_replaced_when_its_value_is_stored_again(
    value: Any, tmp_path: Path
) -> None:
    """As by the call that wrote it, after `flowpregel redo`."""
    handle = stored(value, folder=tmp_path)
    file = Path(handle.location)
    content = file.read_bytes()

    file.write_bytes(content[:-1] + b"?")
    stored(value, folder=tmp_path)

    assert content == file.read_bytes()


def test_an_undamaged_file_is_not_written_again(tmp_path: Path) -> None:
    """Its value may be large."""
    handle = stored(np.zeros(LARGE), folder=tmp_path)
    before = os.stat(handle.location).st_ino

    stored(np.zeros(LARGE), folder=tmp_path)

    assert before == os.stat(handle.location).st_ino


def test_a_handle_shows_type_and_size(tmp_path: Path) -> None:
    """And is small, whatever the value is."""
    handle = stored(bytes(5_000_000), folder=tmp_path)

    assert "<stored bytes, 5.0 MB>" == repr(handle)
    assert len(pickle.dumps(handle)) < 500
    assert handle == pickle.loads(pickle.dumps(handle))


RECORDED = (
    b"p\x80\x05\x95F\x00\x00\x00\x00\x00\x00\x00\x8c\x1bflowpregel.executors.stored"
    b"\x94\x8c\x06Stored\x94\x93\x94(\x8c\x07/v/1/ab\x94\x8c\x02ab\x94K\x03\x8c\x03int"
    b"\x94t\x94R\x94."
)
"""A handle as the first version with handles has recorded it."""


def test_a_recorded_handle_is_read() -> None:
    """By later versions, too."""
    handle: Any = Stored("/v/1/ab", "ab", 3, "int")

    assert handle == PythonCodec().decode(RECORDED)
    assert RECORDED == PythonCodec().encode(handle)


def test_a_handle_is_shown_without_its_class() -> None:
    """Its location is data, which only a full view has."""
    shown = InertCodec().decode(RECORDED)

    assert "Stored(type_name='int', nbytes=3)" == repr(shown)
    assert {"location": "/v/1/ab", "digest": "ab"} == shown.data


def test_a_call_is_known_by_the_content_wherever_the_file_is(tmp_path: Path) -> None:
    """A folder may be moved, or be named otherwise on another machine."""
    first, second = (stored("a", folder=tmp_path / name) for name in ("x", "y"))
    other = stored("b", folder=tmp_path / "x")

    assert digest_of(first) == digest_of(second)
    assert digest_of(first) != digest_of(other)


def test_each_thread_has_a_folder_of_its_own_in_the_folder(tmp_path: Path) -> None:
    """Whatever its id is."""
    thread_ids = [None, "", ".", "..", "../a", "a/b", "%2E", "é", "\udc80"]
    thread_ids += ["a" * 1_000, "a" * 1_001, "no-thread"]

    files = locations_of(tmp_path, thread_ids)

    assert len(thread_ids) == len({file.parent for file in files})
    assert {tmp_path} == {file.parent.parent for file in files}


def test_the_values_of_a_thread_are_deleted(tmp_path: Path, bucket: str) -> None:
    """Those of other threads stay; to delete them again does nothing."""
    for folder in (tmp_path, bucket):
        first, second = (write_value(1, folder, thread_id) for thread_id in "ab")

        delete_stored("a", folder=folder)
        delete_stored("a", folder=folder)

        assert 1 == Stored(*second, "int").value
        with pytest.raises(StoredValueError):
            _ = Stored(*first, "int").value


def test_a_value_is_deleted_by_its_handle(tmp_path: Path, bucket: str) -> None:
    """Once more does nothing."""
    for folder in (tmp_path, bucket):
        handle = stored("content of a deleted value", folder=folder)

        handle.delete()
        handle.delete()

        with pytest.raises(StoredValueError):
            _ = handle.value


@pytest.mark.parametrize("name", ["plain", "with space", "a%20b", "é"])
def test_the_url_of_a_local_folder_is_its_path(name: str, tmp_path: Path) -> None:
    """No package is needed for it."""
    folder = tmp_path / name

    assert stored(1, folder=folder.as_uri()) == stored(1, folder=folder)


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reader has another working directory."""
    monkeypatch.chdir(tmp_path)
    handle = stored(1, folder="values")

    assert os.path.isabs(handle.location)
    assert tmp_path / "values" == Path(handle.location).parent.parent


# ------------------------------------------------ errors


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With what to do."""
    handle = stored(1, folder=tmp_path)
    os.unlink(handle.location)

    with pytest.raises(StoredValueError) as caught:
        _ = handle.value

    assert handle.location in str(caught.value)
    assert "does not exist on" in str(caught.value)
    assert "flowpregel redo" in str(caught.value)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


@pytest.mark.parametrize("kind", ["tuple", "two arrays"])
@pytest.mark.parametrize("change", ["flipped", "cut", "empty", "longer", "huge"])
def test_a_changed_file_is_refused(kind: str, change: str, tmp_path: Path) -> None:
    """Before anything in it is unpickled, and before memory is allocated for it."""
    handle = stored(VALUES[kind], folder=tmp_path)
    file = Path(handle.location)
    data = file.read_bytes()
    changed = {
        "flipped": data[:-1] + b"!",
        "cut": data[:-1],
        "empty": b"",
        "longer": data + b"!",
        "huge": data[:1] + b"\xff" * 40 + data[41:],
    }
    file.write_bytes(changed[change])

    with pytest.raises(StoredValueError, match=f"was changed.*{handle.digest}"):
        _ = handle.value


def test_a_file_that_was_cut_is_written_again(tmp_path: Path) -> None:
    """By a call that runs again; a file of the right size is left as it is."""
    handle = stored({"a": 1}, folder=tmp_path)
    os.truncate(handle.location, 3)

    assert {"a": 1} == stored({"a": 1}, folder=tmp_path).value


def test_a_part_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(ValueEncodingError, match=r"value\['lock'\] is a _thread.lock"):
        stored({"lock": threading.Lock()}, folder=tmp_path)

    assert [] == [*tmp_path.iterdir()]


def stored_with_lost_class(folder: str | Path) -> Stored[Any]:
    """Return the handle of a value whose class cannot be imported any more."""
    module = type(sys)("module_of_a_stored_class")
    module.Row = type("Row", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    handle = stored(module.Row(), folder=folder)
    del sys.modules[module.__name__]
    return handle


def test_a_class_that_is_gone_is_named(tmp_path: Path) -> None:
    """As are the file, and the host that lacks the class."""
    handle = stored_with_lost_class(tmp_path)

    with pytest.raises(ValueEncodingError) as caught:
        _ = handle.value

    message = str(caught.value)
    begin = f"the stored value {handle.location} is a module_of_a_stored_class.Row"
    assert message.startswith(begin)
    assert message.endswith(f"send the module of the class to {HOST}")
    assert isinstance(caught.value.__cause__, ImportError)


def test_the_password_in_a_url_is_not_in_the_error_of_a_value(bucket: str) -> None:
    """The message may be logged."""
    handle = stored_with_lost_class(bucket.replace("://", "://ada:secret@"))

    with pytest.raises(ValueEncodingError, match=r"\.\.\.@bucket/values") as caught:
        _ = handle.value

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"changed"], ids=["missing", "changed"])
def test_the_password_in_a_url_is_not_in_the_error_of_a_lost_file(
    content: bytes | None, bucket: str
) -> None:
    """Nor in the fields of the error, which is recorded."""
    handle = stored(7, folder=bucket.replace("://", "://ada:secret@"))
    files, path = fsspec.url_to_fs(handle.location)
    files.rm_file(path)
    if content is not None:
        files.pipe_file(path, content)

    with pytest.raises(StoredValueError) as caught:
        _ = handle.value

    expected = handle.location.replace("ada:secret@", "...@")
    assert expected == caught.value.location
    assert "secret" not in str(caught.value)


class CompiledElsewhere:
    """A function that pickles as if Python 3.9 had compiled it."""

    def __reduce__(self) -> Any:
        return code_of_file, ("f.py", len, ((),), 0x309)


def test_a_function_of_another_python_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """It is the same as for a value in the store."""
    handle = stored([CompiledElsewhere()], folder=tmp_path)

    with pytest.raises(ValueEncodingError) as caught:
        _ = handle.value

    assert "compiled by Python 3.9" in str(caught.value)
    assert "Read it with the version that compiled it." in str(caught.value)


def test_a_full_disk_is_an_error_that_leaves_no_file(tmp_path: Path) -> None:
    """As a limit on the size of files is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, hard))
    try:
        with pytest.raises(StoreFullError, match="make room"):
            stored(bytes(2 * LARGE), folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [] == [*(tmp_path / "no-thread").iterdir()]


@pytest.mark.skipif(
    os.geteuid() == 0, reason="a user other than root is needed to be without rights"
)
def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    """With what to check."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreReadOnlyError, match="check the permissions"):
        stored(1, folder=tmp_path)


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """It cannot have a folder of a thread."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="leads through a file"):
        stored(1, folder=tmp_path / "file")


@pytest.mark.parametrize("folder", ["", "a\0b", None, 7, b"folder"])
def test_what_is_no_folder_is_refused(folder: Any) -> None:
    """With examples of folders."""
    with pytest.raises(ConfigurationError, match="is not a folder: write a path"):
        stored(1, folder=folder)


def test_a_file_url_of_another_host_is_refused() -> None:
    """It would be a path of this machine."""
    with pytest.raises(ConfigurationError, match="write file:///PATH"):
        stored(1, folder="file://server/values")


def test_an_unknown_scheme_is_refused() -> None:
    """With what it may be, and without the password."""
    with pytest.raises(ConfigurationError, match=r"'nosuch://\.\.\.@bucket.*s3fs"):
        stored(1, folder="nosuch://me:secret@bucket/values")


def test_a_missing_fsspec_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that has it."""
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigurationError, match=r"install flowpregel\[fsspec\]"):
        stored(1, folder="memory://bucket")


def test_an_error_of_a_bucket_is_told_with_its_address() -> None:
    """Whatever its class is."""

    class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "failing"

        def pipe_file(self, *_: Any, **__: Any) -> None:
            raise ArithmeticError("no credentials")

    fsspec.register_implementation("failing", Failing, clobber=True)

    with pytest.raises(StoreError, match=r"failing://bucket.*ArithmeticError: no cred"):
        stored(1, folder="failing://bucket")


def test_a_bucket_that_cannot_be_reached_has_lost_no_value() -> None:
    """Otherwise `redo --gone` would take back each call of a run."""

    class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "unreachable"

        def info(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("no route")

    fsspec.register_implementation("unreachable", Unreachable, clobber=True)

    with pytest.raises(StoreError, match=r"unreachable://bucket.*no route"):
        value_exists("unreachable://bucket/values/1/digest")


def test_a_folder_that_cannot_be_read_has_lost_no_value(tmp_path: Path) -> None:
    """Here it is a link to itself."""
    (tmp_path / "values").symlink_to(tmp_path / "values")

    with pytest.raises(StoreError, match="values/1/digest"):
        value_exists(f"{tmp_path}/values/1/digest")


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_only_a_file_that_is_there_exists(tmp_path: Path, scheme: str) -> None:
    handle = stored(1, folder=f"{scheme}{tmp_path}")
    assert value_exists(handle.location)

    delete_stored(None, folder=f"{scheme}{tmp_path}")
    assert not value_exists(handle.location)


def test_deleted_files_are_lost(tmp_path: Path, bucket: str) -> None:
    """Files in a folder or a file system that this machine lacks are not."""
    folders = [tmp_path / "a", tmp_path / "b", bucket]
    handles = [stored(number, folder=each) for each in folders for number in (1, 2)]
    kept, _, _, _, *remote = locations = [handle.location for handle in handles]
    for handle in handles[1:]:
        handle.delete()
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    unreachable = "unreachable://bucket/values/1/digest"

    lost = lost_files([*locations, unreachable])

    assert {locations[1], *remote} == lost
    assert missing_folder(kept) is None
    assert str(tmp_path / "b") == missing_folder(locations[2])


class NotConnected(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """A file system whose creation connects to a server."""

    protocol = "notconnected"

    def __init__(self, *args: Any, **options: Any) -> None:
        raise OSError("no such host")


def test_a_file_system_that_cannot_connect_has_an_error_as_its_state(
    tmp_path: Path,
) -> None:
    """The states of other files are found out."""
    fsspec.register_implementation("notconnected", NotConnected, clobber=True)
    local = stored(1, folder=tmp_path).location
    remote = "notconnected://bucket/values/1/digest"

    states = file_states([remote, local, remote])

    assert [local, remote] == sorted(states)
    assert states[local].exists
    assert "no such host" in str(states[remote].error)
    assert set() == lost_files([remote, local])


def test_handles_are_found_in_containers(tmp_path: Path) -> None:
    """A list that contains itself is no endless search."""
    a, b, c = (stored(number, folder=tmp_path) for number in range(3))
    value: list[Any] = [1, {"a": (a, "text")}, {b}, [[c], 2.0]]
    value.append(value)

    assert {a, b, c} == {*stored_handles(value)}
    assert [a] == [*stored_handles(a)]
    assert [] == [*stored_handles("text")]


def test_a_missing_bucket_is_named(tmp_path: Path) -> None:
    """It is not created, because its name may be misspelled."""
    with pytest.raises(
        StoreError, match=r"folder or bucket does not exist.*create it first"
    ):
        stored(1, folder=f"local://{tmp_path}/absent/values")

    assert [] == [*tmp_path.iterdir()]


# ------------------------------------------------ reading and writing


def test_the_folder_of_a_thread_is_created_where_there_are_folders(
    tmp_path: Path,
) -> None:
    """Buckets have none, but file systems such as SFTP have."""
    folder = f"local://{tmp_path}"

    handle = stored(1, folder=folder)
    assert 1 == handle.value
    delete_stored(None, folder=folder)

    with pytest.raises(StoredValueError):
        _ = handle.value


def test_a_remote_value_is_read_once_for_tasks_in_a_row() -> None:
    """As long as no other one is read."""
    fsspec.register_implementation("counting", CountingFiles, clobber=True)
    first, second = (stored(name, folder="counting://x") for name in ("1st", "2nd"))

    assert ["1st"] * 5 == [first.value for _ in range(5)]
    assert 1 == CountingFiles.reads
    assert ["2nd", "1st"] == [second.value, first.value]
    assert 3 == CountingFiles.reads


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_file_system_that_syncs_no_folders_will_do() -> None:
    """Some network file systems refuse it, as /proc does; other errors are raised."""
    with pytest.raises(OSError, match="Invalid argument"):
        sync_path("/proc")

    sync_folder("/proc")

    with pytest.raises(FileNotFoundError):
        sync_folder("/proc/absent")


KILLED = """
import os, signal, sys
from flowpregel import stored

def end(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)

os.fsync = end
stored(bytes(1_000_000), folder=sys.argv[1])
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_no_visible_file(tmp_path: Path) -> None:
    """Its draft is hidden, and the next writer is not disturbed by it."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)

    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert -signal.SIGKILL == ended.returncode
    assert all(file.name.startswith(".") for file in files)
    assert bytes(1_000_000) == stored(bytes(1_000_000), folder=tmp_path).value
