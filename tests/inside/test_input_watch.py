"""The watch on standard input tells of reads, with what was printed before, and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

READS = """
import json, os, sys
from autotune.inside.input_watch import watch_input
def looks():
    stdin = sys.stdin
    return [stdin.name, stdin.mode, stdin.fileno(), stdin.isatty(), stdin.encoding, stdin.errors]
usual, told = looks(), []
watch_input(told.append)
told.append(looks() == usual)
print("Loading.", flush=True)
print("Where? ", end="")
try:
    input()
except EOFError:
    pass
print("and on")
sys.stdin.read()
list(sys.stdin)
if os.fork() == 0:
    sys.stdin.readline()
    print("a child", len(told))
    sys.stdout.flush()
    os._exit(0)
os.wait()
open(sys.argv[1], "w").write(json.dumps(told))
"""


def test_each_read_is_told_with_the_line_that_was_printed_before_it(tmp_path: Path) -> None:
    told, log = tmp_path / "told", tmp_path / "log.txt"
    with log.open("wb") as output:
        subprocess.run(
            [sys.executable, "-c", READS, str(told)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
    assert json.loads(told.read_text()) == [True, "Where?", "Where? and on", "Where? and on"]
    assert log.read_text().splitlines()[-1] == "a child 4"
