"""The file systems on which a store is opened, and those on which it is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from flowpregel.errors import StoreError
from flowpregel.storage import file_systems
from flowpregel.storage.file_systems import LOCAL, file_system, mounted

REMOTE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "panfs",
    "virtiofs",
    "vboxsf",
    "prl_fs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.juicefs",
    "fuse.rclone",
    "fuse",
    "orangefs",
    "ocfs2",
    "gfs2",
    "fakeowner",
    "wekafs",
    "smbfs",
    "webdav",
    "afpfs",
    "macfuse",
    "proc",
    "",
)
MAGIC = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xDEADBEEF: "",
}
TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - overlay overlay rw,lowerdir=/a
30 27 0:30 / /data rw shared:1 - virtiofs share rw
31 30 0:31 / /data/my\040data rw - xfs /dev/sdb rw
32 30 0:32 / /data/my\040data rw - gpfs fs1 rw
33 27 0:33 / /database rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/runs", "overlay"),
        ("/data", "virtiofs"),
        ("/data/runs", "virtiofs"),
        ("/data/my data/runs", "gpfs"),
        ("/database/x", "fuse.s3fs"),
        ("/dat", "overlay"),
    ],
)
def test_the_nearest_and_latest_mount_counts(folder: str, kind: str) -> None:
    assert kind == mounted(TABLE, folder)


@pytest.mark.parametrize("kind", sorted(LOCAL))
def test_a_local_file_system_is_accepted(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(file_systems, "file_system", lambda _: kind)

    file_systems.refuse_network_folder("/runs")


@pytest.mark.parametrize("kind", REMOTE)
def test_any_other_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With the option that allows it; also one that nobody has ever heard of."""
    monkeypatch.setattr(file_systems, "file_system", lambda _: kind)

    with pytest.raises(StoreError, match=r"allow_network=True") as caught:
        file_systems.refuse_network_folder("/runs")

    assert f"({kind or 'of unknown type'})" in str(caught.value)


@pytest.mark.parametrize("magic", MAGIC)
def test_without_a_list_of_mounts_the_kernels_number_counts(
    monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """In a root folder of its own there may be no ``/proc``."""
    monkeypatch.setattr(file_systems, "_statfs", lambda _: struct.pack("=Q", magic))
    monkeypatch.setattr(file_systems, "mounted", lambda *_: "")
    monkeypatch.setattr(file_systems.sys, "platform", "linux")

    assert MAGIC[magic] == file_system("/runs")


@pytest.mark.parametrize("kind", ["apfs", "hfs", "smbfs", "nfs", "macfuse"])
def test_on_macos_the_kernels_name_counts(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = bytes(72) + kind.encode().ljust(16, b"\0") + b"/Volumes/x"
    monkeypatch.setattr(file_systems, "_statfs", lambda _: data.ljust(2_168, b"\0"))
    monkeypatch.setattr(file_systems.sys, "platform", "darwin")

    assert kind == file_system("/runs")


def test_the_number_and_the_list_of_mounts_agree(tmp_path: Path) -> None:
    """On this machine, where both can be had."""
    data = file_systems._statfs(str(tmp_path))  # noqa: SLF001 - the room's own test
    listed = file_system(str(tmp_path))

    assert listed in LOCAL
    assert (file_systems._BY_MAGIC.get(file_systems._magic_in(data), "") in LOCAL) == (  # noqa: SLF001 - as above
        listed in LOCAL
    )
    # A store that is to be made is judged by the folder that it will be in.
    assert data[:8] == file_systems._statfs(str(tmp_path / "new" / "store"))[:8]  # noqa: SLF001
