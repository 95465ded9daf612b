"""``python -m autotune``, which is the same as the command ``autotune``."""

from autotune.cli.app import main

main()
