"""Stands in for the command ``autotune``: answers at once, and wrongly where FAULT says so."""

import json
import os
import subprocess
import sys
import time

FAULT = os.environ.get("FAULT", "")


def search():
    claim = {"wrong claim": 2.2}.get(FAULT, 1.6)
    host_bytes = int(2.4 * 2**30 * (1.3 if FAULT == "wrong memory" else 1.0))
    finding = "no significant gain" if FAULT == "no claim" else "faster"
    if FAULT == "leaves a process":
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    if FAULT == "no answer":
        return
    if FAULT == "hangs":
        time.sleep(60)
    best = {
        "speedup": {"estimate": claim, "low": claim * 0.97, "high": claim * 1.03},
        "config": {"workers": 4},
        "baseline": {"workers": 1},
        "memory": {"baseline": {"host_bytes": host_bytes, "device_reserved_bytes": None}},
        "program": {"device": "cpu"},
        "search": {"processes": 3},
    }
    answer = {
        "finding": finding,
        "reason": "",
        "run": ".autotune/train",
        "seconds": 30.0,
        "first_step_s": 4.0,
        "untried": {"compile": "no time was left"},
        "best": best,
        "trials": [{"outcome": "ok"}, {"outcome": "ok"}, {"outcome": "out of memory"}],
    }
    print(json.dumps(answer))


def run(script, *arguments):
    other = ["--device", "cuda:1"] if FAULT == "another device" else []
    os.execv(sys.executable, [sys.executable, script, *arguments, "--fast", *other])


def doctor():
    gpus = [{"name": "none of torch's"}] if FAULT == "wrong facts" else []
    print(json.dumps({"machine": {"hardware": {"gpus": gpus}, "warnings": []}}))


command, *arguments = sys.argv[1:]
if command == "search":
    search()
elif command == "run":
    run(*arguments[1:])
else:
    doctor()
