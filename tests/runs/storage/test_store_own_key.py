"""A store has its key in it: another home or container opens it; others' stores stay
shut.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import ConfigurationError, StoreError, StoreForeignError
from tests.runs.stores import ROOT, commit, newest

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to others"
)
VARIABLES = ("FLOWPREGEL_STORE_KEY", "FLOWPREGEL_STORE_KEY_FILE", "FLOWPREGEL_TRUST")


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch, _store_key: None) -> None:
    """Set none of the variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def made(path: Path) -> Path:
    """Return a closed store with one checkpoint."""
    with LMDBSaver(path) as saver:
        commit(saver, 0)
    return path


# ---------------------------------------------------------------- where the key is


def test_a_store_opens_in_another_home(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing outside of its folder is needed, and nothing is made there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    assert 0 == newest(made)
    assert [made.name] == os.listdir(tmp_path)


def test_its_data_file_alone_is_the_whole_store(made: Path, tmp_path: Path) -> None:
    """As LMDB's own tools copy it."""
    other = tmp_path / "other"
    other.mkdir(0o700)
    shutil.copy(made / "data.mdb", other)

    assert 0 == newest(other)


def test_a_backup_and_a_compacted_store_have_the_key(
    made: Path, tmp_path: Path
) -> None:
    """It is in the header, which each of them copies."""
    with LMDBSaver(made) as saver:
        saver.backup(tmp_path / "backup")
        saver.compact()

    assert [0, 0] == [newest(made), newest(tmp_path / "backup")]


def test_each_store_has_a_key_of_its_own(made: Path, tmp_path: Path) -> None:
    """A record of one does not hold in another."""
    LMDBSaver(tmp_path / "other").close()

    assert keys(made) != keys(tmp_path / "other")


def keys(path: Path) -> list[bytes]:
    return re.findall(rb'"own_key": "(\w{64})"', (path / "data.mdb").read_bytes())


def test_the_key_that_the_user_gives_is_not_in_the_store(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the store's own one, once it has been changed for that."""
    with LMDBSaver(made) as saver:
        saver.change_keys(encryption_key=None, key=b"the user's")

    assert [] == keys(made)
    assert b"the user's" not in (made / "data.mdb").read_bytes()
    with pytest.raises(StoreForeignError, match=r"another key \(\w+; none was given\)"):
        LMDBSaver(made)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the user's")
    assert 0 == newest(made)


def test_an_encrypted_store_keeps_its_own_key(made: Path) -> None:
    """Changing the one leaves the other."""
    with LMDBSaver(made) as saver:
        saver.change_keys(encryption_key=b"e" * 32)

    with LMDBSaver(made, options=StoreOptions(encryption_key=b"e" * 32)) as saver:
        assert saver.thread("t") is not None


def test_a_store_with_its_own_key_is_not_opened_with_the_users(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives a key wants no other; the message says what to do."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "ours")
    with pytest.raises(StoreForeignError, match=r"contains its own key: unset"):
        LMDBSaver(made)

    LMDBSaver(made, options=StoreOptions(trust=True)).close()
    assert 0 == newest(made)
    assert [] == keys(made)


def test_a_store_whose_key_is_lost_gets_one_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is trusted."""
    with monkeypatch.context() as other:
        other.setenv("FLOWPREGEL_STORE_KEY", "lost")
        LMDBSaver(path).close()
    monkeypatch.setenv("FLOWPREGEL_TRUST", "1")
    LMDBSaver(path).close()
    monkeypatch.delenv("FLOWPREGEL_TRUST")

    LMDBSaver(path).close()
    assert len(keys(path)) >= 1


def test_the_key_may_be_in_a_file_elsewhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a secret that is mounted into a container; its last line may end."""
    file = tmp_path / "secret"
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY_FILE", str(file))
    with pytest.raises(StoreError, match="secret cannot be used: No such file"):
        LMDBSaver(path)
    file.write_text("the user's\n")
    LMDBSaver(path).close()

    assert [] == keys(path)
    monkeypatch.delenv("FLOWPREGEL_STORE_KEY_FILE")
    LMDBSaver(path, options=StoreOptions(trust=b"the user's")).close()


@pytest.mark.parametrize("content", [b"", b"\n", b" \t\n\n"])
def test_a_blank_key_file_is_no_key(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """It would seal the store under a key that everybody knows."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY_FILE", str(file))

    with pytest.raises(StoreError, match="secret contains no key"):
        LMDBSaver(path)
    assert not path.exists()


# ---------------------------------------------------------------- who may write it


def let_others_write_the_folder(path: Path) -> str:
    path.chmod(0o770)
    return f"{path} can be written by other users (mode 770)"


def let_others_write_the_file(path: Path) -> str:
    (path / "data.mdb").chmod(0o602)
    return f"{path}/data.mdb can be written by other users (mode 602)"


def give_the_folder(path: Path) -> str:
    os.chown(path, 4321, -1)
    return f"{path} belongs to user 4321, but this process runs as user 0"


def give_the_file(path: Path) -> str:
    os.chown(path / "data.mdb", 4321, -1)
    return f"{path}/data.mdb belongs to user 4321, but this process runs as user 0"


Change = Callable[[Path], str]
of_others = pytest.mark.parametrize(
    "change",
    [
        let_others_write_the_folder,
        let_others_write_the_file,
        pytest.param(give_the_folder, marks=as_root),
        pytest.param(give_the_file, marks=as_root),
    ],
)


@of_others
def test_a_store_that_others_can_write_is_refused(made: Path, change: Change) -> None:
    """By name, by everything that opens one, and it is left as it is."""
    said = change(made)
    before = [(each, each.lstat().st_mode) for each in sorted(made.rglob("*"))]

    for readonly in (False, True):
        with pytest.raises(StoreForeignError) as raised:
            LMDBSaver(made, readonly=readonly)
        assert str(raised.value).startswith(said)
    for command in (["ls"], ["show", "t"], ["verify"], ["stats"]):
        result = CliRunner().invoke(app, [*command, "--store", str(made)])
        assert Code.STORE == result.exit_code
        assert f"{said}; nothing was read" in result.stderr
    assert before == [(each, each.lstat().st_mode) for each in sorted(made.rglob("*"))]


@of_others
@pytest.mark.parametrize("way", ["argument", "variable"])
def test_it_opens_where_it_is_trusted(
    made: Path, change: Change, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an argument and by the variable alike."""
    change(made)
    if way == "variable":
        monkeypatch.setenv("FLOWPREGEL_TRUST", "1")
    with LMDBSaver(
        made, options=StoreOptions(trust=True if way == "argument" else None)
    ) as saver:
        commit(saver, 1)

    monkeypatch.setenv("FLOWPREGEL_TRUST", "1")
    assert 1 == newest(made)


def test_a_trusted_store_of_ours_is_closed_to_others(made: Path) -> None:
    """From then on it needs no trust."""
    made.chmod(0o777)
    LMDBSaver(made, options=StoreOptions(trust=True)).close()

    assert 0o700 == stat.S_IMODE(made.stat().st_mode)
    assert 0 == newest(made)


def test_every_command_that_takes_a_store_takes_trust() -> None:
    """As an option."""
    context = click.Context(app)
    commands = [app.get_command(context, name) for name in app.list_commands(context)]
    options = {
        each.name: {parameter.name for parameter in each.params}
        for each in commands
        if each
    }

    assert [] == [
        name
        for name, found in options.items()
        if "store" in found and "trust" not in found
    ]


def test_a_command_with_trust_opens_it(made: Path) -> None:
    """And leaves it as it is, if it only looks."""
    made.chmod(0o777)
    result = CliRunner().invoke(app, ["ls", "--store", str(made), "--trust"])

    assert Code.OK == result.exit_code, result.output
    assert 0o777 == stat.S_IMODE(made.stat().st_mode)


def test_an_argument_overrules_the_variable(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a value that is neither yes nor no is an error."""
    made.chmod(0o777)
    monkeypatch.setenv("FLOWPREGEL_TRUST", "1")
    with pytest.raises(StoreForeignError):
        LMDBSaver(made, options=StoreOptions(trust=False))
    monkeypatch.setenv("FLOWPREGEL_TRUST", "maybe")
    with pytest.raises(
        ConfigurationError, match="FLOWPREGEL_TRUST is 'maybe': write 1 or 0"
    ):
        LMDBSaver(made)


# ---------------------------------------------------------------- containers

PROGRAM = """
import os, sys, time
from flowpregel._core.records import Address
from flowpregel import entrypoint, task
from flowpregel.checkpoint.lmdb import LMDBSaver

saver = LMDBSaver("runs.lmdb")

@task
def count(number):
    with open("calls.txt", "a") as file:
        file.write(f"{number}\\n")
    return number * 2

def made(number):
    if number == 5 and "die" in sys.argv:
        while len({each.task_id for each in saver.load(Address("one")).writes}) < 5:
            time.sleep(0.01)  # until what is done is on disk
        os._exit(9)
    return count(number).result()

@entrypoint(checkpointer=saver, executor="inline")
def flow(n):
    return sum(made(number) for number in range(n))

print(flow.run(10, id="one"))
"""


def contained(
    folder: Path, home: Path, *words: str, uid: int = 0
) -> subprocess.Popen[str]:
    """Run the program in a namespace of its own, as containers do: host, pids and
    home.
    """
    home.mkdir(exist_ok=True)
    wrap: list[str] = []
    if os.geteuid() == 0 and shutil.which("unshare") and can_unshare():
        named = ["sh", "-c", f'hostname {home.name}; exec "$@"', "sh"]
        wrap = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", *named]
    environment = {
        k: v for k, v in os.environ.items() if k not in (*VARIABLES, "XDG_CONFIG_HOME")
    }
    return subprocess.Popen(
        [*wrap, sys.executable, str(folder / "program.py"), *words],
        cwd=folder,
        env={**environment, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def can_unshare() -> bool:
    tried = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_second_container_on_the_same_volume_goes_on(tmp_path: Path) -> None:
    """The first dies; the others have another home, host and process numbers."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "program.py").write_text(PROGRAM)

    first = contained(volume, tmp_path / "first", "die")
    first.communicate(timeout=60)
    assert 9 == first.returncode
    for name in ("second", "third"):
        again = contained(volume, tmp_path / name)
        out, err = again.communicate(timeout=60)
        assert (0, "90\n") == (again.returncode, out), err

    assert [str(number) for number in range(10)] == (
        volume / "calls.txt"
    ).read_text().split()
