from __future__ import annotations

import sys
from time import monotonic

import pytest

from autotune.rig import python_exit
from autotune.rig.python_exit import python_exit_s


def ends(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_end_of_python_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import atexit, time; atexit.register(time.sleep, 0.3); print(flush=True)"
    monkeypatch.setattr(python_exit, "COMMAND", ends(slow))
    found = python_exit_s(monotonic)
    assert found is not None
    assert found >= 0.3


def test_an_end_that_fails_or_takes_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_exit, "MOST_S", 0.2)
    late = "import atexit, time; atexit.register(time.sleep, 60); print(flush=True)"
    for code in ("raise SystemExit(1)", "print(flush=True); raise SystemExit(1)", late):
        monkeypatch.setattr(python_exit, "COMMAND", ends(code))
        assert python_exit_s(monotonic) is None, code


def test_torch_is_loaded_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_exit, "MOST_S", 100.0)
    assert python_exit_s(monotonic) is not None
