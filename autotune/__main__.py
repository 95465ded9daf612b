"""``python -m autotune``: the same as the command ``autotune``."""

from autotune.cli.app import main

main()
