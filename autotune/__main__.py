"""``python -m autotune`` and the command ``autotune``, which are the same.

Another distribution may have replaced files of this package. Where this module still runs, it says
so; the command line would fail at its first import.
"""

import sys


def main() -> None:
    """Run the command line, or name the distribution that has replaced a part of it."""
    try:
        from autotune.cli import app
    except ImportError:
        from autotune.cli.exit_status import ExitStatus
        from autotune.program.environment import clash_of_names

        clash = clash_of_names()
        if not clash:
            raise
        sys.stderr.write(f"autotune: {clash}\n")
        sys.exit(ExitStatus.REFUSED)
    app.main()


if __name__ == "__main__":
    main()
