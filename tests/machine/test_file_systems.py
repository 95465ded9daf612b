"""File systems of networks are told by what statfs(2) and /proc/self/mountinfo say of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from autotune.machine import file_systems
from autotune.machine.file_systems import kind_of, network_file_system

ROOT = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
# f_type, the line of the mount at /w, and the kind; as these systems write them
RECORDED = (
    (0x6969, "90 22 0:51 / /w rw shared:9 - nfs4 10.0.0.2:/export rw,vers=4.2,proto=tcp", "nfs"),
    (0x6969, "91 22 0:52 / /w rw - nfs filer:/vol/home rw,vers=3,nolock,local_lock=all", "nfs"),
    (0x0BD00BD0, "92 22 0:53 / /w rw,flock - lustre 10.1.1.5@o2ib:/scratch rw,flock", "lustre"),
    (0x47504653, "93 22 0:54 / /w rw - gpfs gpfs0 rw", "gpfs"),
    (0x19830326, "94 22 0:55 / /w rw - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs.conf", "beegfs"),
    (0xFE534D42, "95 22 0:56 / /w rw - cifs //nas/share rw,vers=3.1.1,cache=strict", "smb2"),
    (0xFF534D42, "96 22 0:57 / /w rw - cifs //nas/share rw,vers=3.0", "cifs"),
    (0xFE534D42, "97 22 0:58 / /w rw - smb3 //nas/share rw,vers=3.1.1", "smb2"),
    (0x00C36400, "98 22 0:59 / /w rw - ceph 10.2.0.1:6789:/ rw,name=home", "ceph"),
    (0x01021997, "99 22 0:60 / /w rw - 9p C:\\134 rw,aname=drvfs;path=C:\\;uid=1000", "9p"),
    (0x65735546, "100 22 0:61 / /w rw - fuse.sshfs me@host:/home/me rw,user_id=1000", "fuse.sshfs"),
    (0x65735546, "101 22 0:62 / /w rw - fuse.gcsfuse bucket rw,user_id=0", "fuse.gcsfuse"),
    (0x65735546, "102 22 0:63 / /w rw - fuse.glusterfs gl1:/vol rw", "fuse.glusterfs"),
    (0x65735546, "454 27 0:92 / /w rw,nosuid - fuse /srv/real rw,user_id=0", "fuse"),  # bindfs
    (0x65735546, "103 22 0:64 / /w rw - virtiofs share rw", "virtiofs"),
    (0x65735546, "104 22 0:65 / /w rw - fuse.fuse-overlayfs fuse-overlayfs rw", ""),
    (0x65735546, "105 22 8:17 / /w rw - fuseblk /dev/sdb1 rw,user_id=0", ""),
    (0xEF53, "106 22 8:17 / /w rw - ext4 /dev/sdb1 rw", ""),
    (0x58465342, "107 22 8:18 / /w rw - xfs /dev/sdb2 rw", ""),
    (0x9123683E, "108 22 0:40 /@home /w rw - btrfs /dev/sda3 rw,subvol=/@home", ""),
    (0x2FC12FC1, "109 22 0:41 / /w rw - zfs tank/home rw,xattr", ""),
    (0x01021994, "110 22 0:42 / /w rw - tmpfs tmpfs rw,size=8g", ""),
    (0x794C7630, "111 22 0:43 / /w rw - overlay overlay rw,lowerdir=/l,upperdir=/u", ""),
    (0x5C5C5C5C, "112 22 0:44 / /w rw - wekafs backend/fs rw", "wekafs"),  # a number of no table
    (None, "113 22 0:45 / /w rw - nfs4 10.0.0.2:/export rw", "nfs4"),  # statfs is refused
)


def test_each_recorded_file_system_is_told_apart() -> None:
    for magic, mount, kind in RECORDED:
        for folder in (Path("/w"), Path("/w/project/.autotune/train")):
            assert kind_of(folder, magic, ROOT + mount) == kind, mount
        if magic is None or not kind:
            assert kind_of(Path("/wide"), magic, ROOT + mount) == "", "another folder"


def test_the_mount_that_covers_a_folder_last_counts() -> None:
    mounts = (
        ROOT
        + "30 22 0:51 / /home rw - nfs4 filer:/home rw\n"
        + "31 30 8:2 / /home/me/a\\040disk rw - xfs /dev/sdb rw\n"
        + "32 31 0:52 / /home/me/a\\040disk rw - nfs4 filer:/disk rw\n"
        + "33 30 0:53 / /home/me/ram rw - tmpfs tmpfs rw\n"
        + "a line that a kernel of tomorrow writes\n"
    )
    for folder, kind in (("a disk", "nfs4"), ("ram", ""), ("", "nfs4"), ("a disk/x", "nfs4")):
        assert kind_of(Path("/home/me") / folder, None, mounts) == kind, folder


def test_folders_of_this_machine_are_asked(tmp_path: Path) -> None:
    assert network_file_system(Path("/proc")) == ""
    for folder in (tmp_path, Path("/proc"), Path("/dev")):
        said = subprocess.run(
            ["stat", "--file-system", "--format=%t", folder],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert file_systems._magic(folder) == int(said, 16), folder
    for folder in (tmp_path, tmp_path / "missing"):
        assert isinstance(network_file_system(folder), str)
