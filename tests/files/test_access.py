"""Files are written whole or not at all, with the modes that people expect, and through no link."""

import errno
import os
from pathlib import Path

import pytest

from autotune.files import access


def test_a_file_is_replaced_whole_with_its_mode_and_a_new_one_follows_the_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0o027)
    try:
        access.write(tmp_path / "a" / "new", "text ä")
        access.write(tmp_path / "own" / "kept", b"bytes", private=True)
        for line in (b"one ", b"two"):
            with access.log_file(tmp_path / "own" / "log") as log:
                log.write(line)
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "new").read_text(encoding="utf-8") == "text ä"
    assert (tmp_path / "own" / "log").read_bytes() == b"one two"
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o750, "new": 0o640, "own": 0o700, "kept": 0o600, "log": 0o600}
    (tmp_path / "a" / "new").chmod(0o664)
    access.write(tmp_path / "a" / "new", "again")
    assert (tmp_path / "a" / "new").stat().st_mode & 0o777 == 0o664


def test_no_link_is_followed(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs" / "file", tmp_path / "link"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    link.symlink_to(theirs)
    access.write(link, "ours")
    assert theirs.read_text() == "theirs"
    assert link.read_text() == "ours"
    assert not link.is_symlink()
    link.unlink()
    link.symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        access.log_file(link)


def test_a_full_disk_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        access.write(path, "new")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"file": "old"}


def test_a_file_system_that_syncs_nothing_and_knows_no_modes_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", cannot)
    monkeypatch.setattr(os, "fchmod", cannot)
    path = tmp_path / "best.yaml"
    for content, error in (("old", errno.EINVAL), ("old", errno.ENOSYS), ("new", errno.EPERM)):
        monkeypatch.setattr(os, "fsync", cannot if error != errno.EPERM else lambda _: None)
        access.write(path, content, private=error != errno.EPERM)
    assert path.read_text() == "new"
