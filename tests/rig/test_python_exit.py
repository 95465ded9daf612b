from __future__ import annotations

import sys
from time import monotonic

import pytest

from autotune.rig import python_exit
from autotune.rig.python_exit import python_exit_s

SAY = f"import sys; sys.stdout.buffer.write({python_exit.WORD!r}); sys.stdout.flush()"
LATE = "import atexit, time; atexit.register(time.sleep, {})"


def ends(monkeypatch: pytest.MonkeyPatch, code: str, most_s: float) -> float | None:
    monkeypatch.setattr(python_exit, "COMMAND", (sys.executable, "-c", code))
    return python_exit_s(monotonic, most_s, {"OWN": "1"})


def test_the_end_of_python_is_timed_from_its_word_on(monkeypatch: pytest.MonkeyPatch) -> None:
    banner = (
        "import os, time; print('hello', flush=True); time.sleep(1.0); assert os.environ['OWN']"
    )
    found = ends(monkeypatch, f"{banner}; {LATE.format(0.3)}; {SAY}", 60.0)
    assert found is not None
    assert found >= 0.3


def test_an_end_that_fails_or_takes_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (
        "raise SystemExit(1)",
        "print('nothing was loaded')",
        f"{SAY}; raise SystemExit(1)",
    ):
        assert ends(monkeypatch, code, 60.0) is None, code
    for code in ("import time; time.sleep(60)", f"{LATE.format(60)}; {SAY}"):
        assert ends(monkeypatch, code, 0.5) is None, code


def test_torch_is_loaded_for_it() -> None:
    assert python_exit_s(monotonic, 100.0, {}) is not None
