"""``python -m autotune.inside.torchrun FILE OPTIONS``: torchrun that notes how its ranks ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run


def main(codes_path: str, *options: str) -> int:
    """Launch ranks; write the exit codes of those that failed, by rank, as JSON."""
    try:
        run(parse_args(options))
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        part = Path(f"{codes_path}.part")
        part.write_text(json.dumps(codes), encoding="utf-8")
        part.replace(codes_path)
        return 1
    except SignalException:  # our own end_tree()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
