"""Keeps one core busy for a share of the time: `python burn.py SHARE SECONDS`."""

from __future__ import annotations

import sys
from time import perf_counter, sleep

PERIOD_S = 0.1

share, until = float(sys.argv[1]), perf_counter() + float(sys.argv[2])
while perf_counter() < until:
    began = perf_counter()
    while perf_counter() - began < share * PERIOD_S:
        pass
    sleep((1 - share) * PERIOD_S)
