"""Files: what autotune puts on the disk itself, and how it reads what others may have put there.

``access`` writes and reads single files, ``scratch`` makes the temporary folders.
"""

from autotune.files.access import (
    HOME,
    is_ours,
    log_file,
    make_folder,
    opened,
    read,
    read_left,
    sync_folder,
    write,
)

__all__ = [
    "HOME",
    "is_ours",
    "log_file",
    "make_folder",
    "opened",
    "read",
    "read_left",
    "sync_folder",
    "write",
]
