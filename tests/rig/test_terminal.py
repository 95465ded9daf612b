"""A rig's terminal, with small children of ours in the place of a program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil

from autotune.program.printed import last_line
from autotune.program.program import LaunchPlan
from autotune.rig import processes
from autotune.rig.terminal import Terminal
from tests.rigging import talking

# Reads and asks in every way that a training script may; what it found goes to a file.
VISITS = """
import getpass, json, os, sys, tty
from autotune.rig import terminal
terminal.take()
def asked(*prompts):
    for prompt in prompts:
        try:
            input(prompt)
        except EOFError:
            yield "none"
found = {
    "size": tuple(os.get_terminal_size()),
    "stty": os.popen("stty size").read().split(),
    "shell": os.popen("stty size < /dev/tty; read -p '' ANSWER; echo $?").read().split(),
    "are terminals": [os.isatty(n) for n in range(3)],
    "input": list(asked("one? ", "two? ", "three? ")),
    "read": [sys.stdin.read(), sys.stdin.readline(), os.read(0, 9).decode()],
}
try:
    getpass.getpass()
except EOFError:
    found["password"] = "none"
sys.stdout.write("\\r 50 %\\n" + "x" * 300_000 + "\\nlast words\\n")
sys.stdout.flush()
tty.setraw(0)
found["raw"] = os.read(0, 1).decode()
open(sys.argv[1], "w").write(json.dumps(found))
"""
# Holds a terminal, with a child in it that would live for ever, and says the child's number.
HOLDS = """
import signal, sys, time
from pathlib import Path
from autotune.rig import processes
from autotune.program.program import LaunchPlan
from autotune.rig.terminal import Terminal
log = Path(sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and children inherit that
child = "from autotune.rig import terminal; import time; terminal.take(); print(1); time.sleep(600)"
held = Terminal(log)
process = processes.start(LaunchPlan((sys.executable, "-c", child), "."), log, held)
while not log.read_bytes():
    time.sleep(0.01)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_a_terminal_has_a_size_answers_every_read_and_loses_nothing_that_is_printed(
    tmp_path: Path,
) -> None:
    log, found = tmp_path / "log.txt", tmp_path / "found.json"
    held = Terminal(log)
    try:
        plan = LaunchPlan((sys.executable, "-c", VISITS, str(found)), str(tmp_path))
        assert processes.start(plan, log, held).wait(30) == 0
        held.settle()
        asked = held.asked
    finally:
        held.close()
    assert json.loads(found.read_text()) == {
        "size": [120, 40],
        "stty": ["40", "120"],
        "shell": ["40", "120", "1"],
        "are terminals": [True] * 3,
        "input": ["none"] * 3,
        "read": ["", "", ""],
        "password": "none",
        "raw": "\x04",
    }
    printed = log.read_bytes().decode()
    assert printed.startswith("one? two? three? Password: ")
    assert printed.endswith("\r 50 %\n" + "x" * 300_000 + "\nlast words\n")
    assert asked is not None
    assert asked.prompt == "last words"
    assert asked.times >= 9


def test_what_sits_in_a_terminal_ends_when_the_one_who_holds_it_is_killed(tmp_path: Path) -> None:
    with talking(HOLDS, str(tmp_path / "log.txt")) as (holder, pid):
        child = psutil.Process(int(pid))
        holder.kill()
        assert not psutil.wait_procs([child], timeout=10)[1]


def test_the_question_is_the_last_line_before_a_failure_without_colours() -> None:
    for printed, question in {
        "": "",
        "Loading.\nWhere? ": "Where?",
        "\x1b[1mWhere?\x1b[0m \n\n": "Where?",
        " 10 %\r 20 %\rGo on? [y/n] ": "Go on? [y/n]",
        "Name: Aborted!\n": "Name:",
        'Name: Traceback (most recent call last):\n  File "a.py", line 1\nEOFError\n': "Name:",
    }.items():
        assert last_line(printed) == question, printed
