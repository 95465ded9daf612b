"""Programs of Debian's packages, which are installed where they are missing."""

import os
import shutil
import subprocess
from functools import cache

import pytest


@cache
def need(package: str, program: str) -> str:
    """Return the path of a program, or skip the test where its package is refused.

    Args:
        package: The package of Debian that has it.
        program: Its name, or its path where no PATH has it.
    """
    if found := shutil.which(program):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
        for words in (["apt-get", "update", "--quiet"], install):
            subprocess.run(words, env=quiet, capture_output=True, timeout=300, check=False)
    if found := shutil.which(program):
        return found
    pytest.skip(f"needs {program} of Debian's package {package}, which cannot be installed here")
