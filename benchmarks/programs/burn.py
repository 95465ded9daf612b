"""Keeps one core busy for a share of the time: `python burn.py SHARE SECONDS [SPELL]`.

Busy spells are random and take SPELL seconds on average, 0.05 by default. SHARE is above 0.
"""

from __future__ import annotations

import random
import sys
from time import perf_counter, sleep

share, until = float(sys.argv[1]), perf_counter() + float(sys.argv[2])
spell_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
random.seed(0)
while perf_counter() < until:
    busy_until = perf_counter() + random.expovariate(1 / spell_s)
    while perf_counter() < busy_until:
        pass
    if share < 1:
        sleep(random.expovariate(share / (spell_s * (1 - share))))
