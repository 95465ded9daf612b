"""Which folders are covered: nothing that a user may write to is left real."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autotune.rig.fence.plan import Cover, Folders, Step, plan, read_mounts

# of a laptop with a partition for homes, a network disk, and something that only its owner may see
MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12331664k
25 24 0:23 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=24682416k
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:30 / /run rw,nosuid - tmpfs tmpfs rw
29 28 0:31 / /run/user/1000 rw,nosuid - tmpfs tmpfs rw
30 27 254:1 / /home rw,relatime - ext4 /dev/vdb rw
31 30 0:40 / /home/me/remote\040disk rw - fuse.sshfs host:/ rw,user_id=1000
32 27 0:41 / /mnt/data ro,relatime - nfs4 nas:/data rw
33 27 0:42 / /mnt/net rw,relatime - nfs4 nas:/net rw
34 27 0:43 / /old rw - tmpfs tmpfs rw
35 34 0:44 / /old rw - ext4 /dev/vdc ro
"""
FOLDERS = {
    "/": "dev etc home mnt old proc run sys tmp usr var",
    "/home": "me you",
    "/home/me": ".cache project",
    "/home/me/project": "",
    "/mnt": "data net",
    "/mnt/net": "group",
    "/mnt/net/group": "mine yours",
    "/usr": "local",
    "/var": "log tmp",
}
MINE = {
    "/home/me",
    "/home/me/.cache",
    "/home/me/project",
    "/tmp",
    "/var/tmp",
    "/mnt/net/group/mine",
}


@dataclass
class MadeFolders(Folders):
    writable: set[str] | None = None  # None for root
    folders: dict[str, str] = field(default_factory=lambda: FOLDERS)

    def is_folder(self, path: str) -> bool:
        return not path.endswith(".conf")

    def is_own(self, path: str) -> bool:
        return self.writable is None or path in self.writable - {"/tmp", "/var/tmp", "/tmp/shared"}

    def inside(self, path: str) -> list[str]:
        return [f"{path.rstrip('/')}/{name}" for name in self.folders.get(path, "").split()]

    def may_enter(self, path: str) -> bool:
        return self.writable is None or path != "/home/you"

    def may_write(self, path: str) -> bool:
        return self.writable is None or path in self.writable


def covers(steps: tuple[Step, ...], cover: Cover) -> list[str]:
    return [step.path for step in steps if step.cover is cover]


def test_mounts_are_read_with_odd_names_and_without_hidden_ones() -> None:
    mounts = {mount.path: mount for mount in read_mounts(MOUNTINFO)}
    assert mounts["/home/me/remote disk"].file_system == "fuse.sshfs"
    assert not mounts["/mnt/data"].is_writable  # by the mount
    assert not mounts["/old"].is_writable  # by the file system, and the later of two
    assert not mounts["/proc"].holds_user_files
    hidden = read_mounts(MOUNTINFO + "36 30 0:45 / /home rw - ext4 /dev/vdd rw\n")
    assert "/home/me/remote disk" not in {mount.path for mount in hidden}


def test_root_covers_each_folder_of_the_root_and_each_mount_as_a_whole() -> None:
    steps = plan(read_mounts(MOUNTINFO), MadeFolders(), is_root=True)
    assert covers(steps, Cover.OVERLAY) == [
        "/etc", "/mnt", "/tmp", "/usr", "/var", "/home", "/home/me/remote disk", "/mnt/net",
    ]  # fmt: skip
    attached = {step.path: step.attached for step in steps}
    assert attached["/home"] == ("/home/me/remote disk",)
    assert attached["/mnt"] == ("/mnt/data", "/mnt/net")
    assert covers(steps, Cover.MEMORY) == ["/dev/shm"]
    assert covers(steps, Cover.READ_ONLY) == ["/", "/run", "/run/user/1000"]
    assert not covers(steps, Cover.REBUILT)


def test_an_ordinary_user_covers_what_may_be_written_and_no_more() -> None:
    steps = plan(read_mounts(MOUNTINFO), MadeFolders(MINE), is_root=False)
    assert covers(steps, Cover.OVERLAY) == [
        "/tmp", "/var/tmp", "/home/me/.cache", "/home/me/project", "/mnt/net/group/mine",
    ]  # fmt: skip
    assert covers(steps, Cover.REBUILT) == ["/home/me"]  # for what is mounted in it
    read_only = covers(steps, Cover.READ_ONLY)
    assert {"/", "/home", "/mnt/net", "/home/me/remote disk"} <= set(read_only)
    assert [step.cover for step in steps][-len(read_only) :] == [Cover.READ_ONLY] * len(read_only)


def test_a_folder_of_the_users_is_found_deep_down_near_the_working_directory() -> None:
    mine = "/mnt/net/a/b/c/d/mine"
    folders = {**FOLDERS, "/mnt/net": "a", "/mnt/net/a": "b", "/mnt/net/a/b": "c"}
    folders |= {"/mnt/net/a/b/c": "d other", "/mnt/net/a/b/c/d": "mine"}
    made = MadeFolders({mine}, folders)
    near = plan(read_mounts(MOUNTINFO), made, is_root=False, towards=[f"{mine}/project"])
    assert covers(near, Cover.OVERLAY) == [mine]
    far = plan(read_mounts(MOUNTINFO), made, is_root=False)
    assert not covers(far, Cover.OVERLAY)  # and is read-only with all around it
    assert "/mnt/net" in covers(far, Cover.READ_ONLY)


def test_what_lies_behind_folders_of_others_on_the_way_is_covered_once_more() -> None:
    for others, mine, covered in (
        ("/tmp/roots", "/tmp/roots/mine", "/tmp/roots/mine"),  # which the user may not write to
        ("/tmp/shared", "/tmp/shared/mine", "/tmp/shared"),  # which everybody may
    ):
        made = MadeFolders({*MINE, "/tmp/shared", mine, f"{mine}/project"})
        near = plan(read_mounts(MOUNTINFO), made, is_root=False, towards=[f"{mine}/project"])
        overlays = covers(near, Cover.OVERLAY)
        assert covered in overlays, others
        assert overlays.index("/tmp") < overlays.index(covered)
        assert f"{mine}/project" not in overlays


@pytest.mark.parametrize("is_root", [True, False])
def test_every_writable_file_system_is_covered_or_read_only(is_root: bool) -> None:
    mounts = read_mounts(MOUNTINFO)
    steps = plan(mounts, MadeFolders(None if is_root else MINE), is_root=is_root)
    answered = {step.path for step in steps}
    for mount in mounts:
        if mount.is_writable and mount.holds_user_files:
            assert mount.path in answered, mount
