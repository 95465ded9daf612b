"""What a person sees on a real terminal of 80 columns, and without colours."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.tuning.events import Phase

COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
SHOWN = [["show", "--list"], ["show", "fast"], ["show", "--trials", "fast"]]
END = "end of the command"
# Several commands in one process, because loading Optuna takes longer than they do
COMMANDS = f"""
import json, sys
from autotune.cli.app import app
for words in json.loads(sys.argv[1]):
    app(words, standalone_mode=False)
    print({END!r}, flush=True)
"""
# A search in virtual time, whose console and result a terminal shows
SEARCH = """
import sys
from pathlib import Path
from autotune.cli import search_report
from autotune.cli.console import Console
from tests.scripted import Script, begin
knobs = {"workers": (0, 1, 2), "batch_size": (64, 128), "precision": ("fp32", "bf16")}
console = Console()
result = begin(Path(sys.argv[1]), Script({"workers": {1: 1.5}}), knobs).go_on(300.0, console)
console.end()
search_report.show(result, Path("best.yaml"))
"""


def on_terminal(argv: list[str], cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a command on a pseudo-terminal, and return what it wrote there."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"}}
    env |= {"TERM": "xterm-256color", **(variables or {})}
    with subprocess.Popen(argv, stdin=writer, stdout=writer, stderr=writer, cwd=cwd, env=env) as it:
        os.close(writer)
        seen = b""
        while True:
            try:
                more = os.read(reader, 65536)
            except OSError:  # Linux's way to say that nobody holds the other end any more
                break
            if not more:
                break
            seen += more
    os.close(reader)
    assert it.returncode == 0, seen.decode()
    return seen.decode()


def lines_of(seen: str) -> list[str]:
    return re.split(r"[\r\n]+", ESCAPES.sub("", seen))


def test_nothing_is_wider_than_the_terminal_and_no_word_is_lost(
    searches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = on_terminal([sys.executable, "-c", COMMANDS, json.dumps(SHOWN)], searches)
    monkeypatch.chdir(searches)
    for words, screen in zip(SHOWN, seen.split(END), strict=False):
        lines = lines_of(screen)
        # What is to be copied stays on one line, which the terminal itself continues
        copied = re.compile(r"^( {2}|Next: )(autotune |import autotune)")
        assert not [line for line in lines if len(line) > COLUMNS and not copied.match(line)]
        shown, plain = _letters("".join(lines)), CliRunner().invoke(app, words).stdout
        for word in plain.split():
            assert _letters(word) in shown, words
        if words[0] == "show":  # other commands have tables, whose cells are folded one by one
            assert _letters(plain) in shown


def _letters(text: str) -> str:
    return re.sub(r"[\s✓─]", "", text)


def test_a_search_on_a_terminal_redraws_its_phases_and_leaves_a_line_of_each(
    tmp_path: Path,
) -> None:
    code = [sys.executable, "-c", SEARCH, str(tmp_path)]
    seen = on_terminal(code, Path(__file__).parents[2])
    lines = [line for line in lines_of(seen) if line.strip()]
    assert lines[0].startswith("autotune  train.py")
    assert any("━" in line for line in lines), "the bar of the budget"
    assert {line[3:18].strip() for line in lines if line.startswith(" ✓ ")} == {*Phase}
    assert any(re.match(r"✓ 1\.\d+x faster, confirmed", line) for line in lines)
    commands = [line for line in lines if "autotune run best.yaml" in line]
    assert len(commands) == 1
    assert COLOURS.search(seen)


def test_no_color_is_respected_and_the_words_stay(searches: Path) -> None:
    command = [sys.executable, "-m", "autotune", "show", "fast"]
    seen = on_terminal(command, searches, {"NO_COLOR": "1"})
    assert not COLOURS.search(seen)
    assert "✓ 1." in seen


def test_results_are_on_stdout_and_talk_on_stderr(
    searches: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not CliRunner().invoke(app, ["show", "--list"]).stdout
    monkeypatch.chdir(searches)
    for words in (("show", "fast"), ("show", "--list"), ("show", "--md", "fast", "-o", "-")):
        done = CliRunner().invoke(app, words)
        assert done.stdout
        assert not done.stderr


def test_streams_that_are_closed_or_full_are_told_in_one_line_or_not_at_all() -> None:
    for closing, status, said in (
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 0, ""),
        (">/dev/full", 2, "autotune: The output cannot be written: No space left on device.\n"),
    ):
        line = f"{sys.executable} -m autotune skill {closing}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (status, said), closing
