"""The claim: the speedup that fresh processes show, and how sure it is after each of them.

Looking at the data after each process and stopping once they look good would claim gains that are
not there: eight of a hundred instead of five. So the looks are planned. The error of 5 % is spent
over them as 0.05 (k / 6)^1.5, and the interval of each look is as wide as the part it may spend.

Source: Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"; the levels below
were computed for equally spaced looks.

Each look also foresees how likely the last one will find the config faster, if the processes to
come are like those so far (predictive power: Spiegelhalter, Freedman and Blackburn 1986). Stopping
where that is unlikely claims nothing that is not there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.measurement.stats import student_t

# Two-sided levels of looks 1 to 6 at configs that take turns within each process
TOGETHER = (0.0035, 0.0069, 0.0106, 0.0159, 0.0208, 0.0260)
# The same where the spread of the processes is all there is to go by, from look 2 on
SCATTERED = (0.0035, 0.0047, 0.0089, 0.0133, 0.0187, 0.0261)
# Levels of the looks at configs that each need a process, by the number of pairs of processes
APART = {3: 0.0061, 5: 0.0126, 8: 0.0192, 12: 0.0256}
MAX_LOOKS = len(TOGETHER)
LEAST_SHARE = 0.1  # of the levels, that a candidate keeps however many others were looked at before
NORMAL = statistics.NormalDist()
MOST_LOG = 20.0  # half-width of an interval that says nothing; more would overflow
# What a ratio is assumed to differ by between processes of one program (standard deviation of its
# logarithm), and the weight of that assumption in degrees of freedom. On a shared 2-core machine
# 1.3 % was seen for equal configs, 2.2 % for another precision (8 processes each) and 5.4 % for
# another number of workers (12). At 5 %, equal configs are called faster in 2.5-3.5 % of searches.
PROCESS_SPREAD = 0.03
ASSUMED_DEGREES = 4
# 95 % quantiles of F with 1 to 5 and ASSUMED_DEGREES degrees of freedom
# (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.3)
F_95 = (7.71, 6.94, 6.59, 6.39, 6.26)


@dataclass(frozen=True)
class Claim:
    """What one look says.

    Attributes:
        speedup: With the interval of this look.
        chance: How likely the interval of the last planned look will lie above 1, from 0 to 1.
    """

    speedup: Interval
    chance: float


def together(processes: Sequence[Sequence[float]], share: float = 1.0) -> Claim:
    """Return what is said of a config that took turns with the baseline in several processes.

    The spread of the processes' means is estimated from two sources: the pairs within each process
    together with an assumed spread of processes, and the means themselves. If the means scatter
    beyond the first source (F test at 5 %), only they count.

    Args:
        processes: For each process, the ratios config / baseline of neighbouring visits.
        share: Of the error, as ``share_left`` says.

    Raises:
        ValueError: There are fewer than two ratios, which have no spread.
    """
    logs = [[math.log(ratio) for ratio in pairs] for pairs in processes]
    if sum(map(len, logs)) < 2:
        raise ValueError("a claim needs at least two pairs of visits")
    means = [statistics.fmean(pairs) for pairs in logs]
    count, centre = len(means), statistics.fmean(means)
    within = [statistics.variance(pairs) / len(pairs) for pairs in logs if len(pairs) > 1]
    assumed = (statistics.fmean(within) if within else 0.0) + PROCESS_SPREAD**2
    apart = sum((mean - centre) ** 2 for mean in means)
    degrees = count - 1
    if degrees and apart / degrees > F_95[min(degrees, len(F_95)) - 1] * assumed:
        spread, levels = math.sqrt(apart / degrees), SCATTERED
    else:
        known = ASSUMED_DEGREES + degrees
        spread = math.sqrt((ASSUMED_DEGREES * assumed + apart) / known)
        degrees, levels = known, TOGETHER
    level = share * levels[min(count, MAX_LOOKS) - 1]
    half = student_t(level, degrees) * spread / math.sqrt(count)
    last = max(count, MAX_LOOKS)
    last_t = student_t(share * levels[-1], degrees + last - count)
    return Claim(_around(centre, half), _chance(centre, spread, count, last, last_t))


def apart(winner: Sequence[float], baseline: Sequence[float], share: float = 1.0) -> Claim:
    """Return what is said of a config that was measured in processes other than the baseline's.

    This is Student's two-sample t interval on the logarithms. Looks are planned after 3, 5, 8 and
    12 pairs of processes; in between, the interval is that of the next look.

    Args:
        winner: Rates of the config's processes.
        baseline: Rates of the baseline's processes, which were run in turn with them.
        share: Of the error, as ``share_left`` says.

    Raises:
        ValueError: A side has fewer than two rates, or their numbers differ.
    """
    count = len(winner)
    if count < 2 or len(baseline) != count:
        raise ValueError("a claim needs equally many processes of each side, at least two")
    sides = [[math.log(rate) for rate in rates] for rates in (winner, baseline)]
    centre = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
    spread = math.sqrt(sum(map(statistics.variance, sides)))
    level = next((level for pairs, level in APART.items() if pairs >= count), max(APART.values()))
    half = student_t(share * level, 2 * count - 2) * spread / math.sqrt(count)
    last = max(count, *APART)
    last_t = student_t(share * max(APART.values()), 2 * last - 2)
    return Claim(_around(centre, half), _chance(centre, spread, count, last, last_t))


def share_left(taken: Sequence[float]) -> float:
    """Return the share of the error of 5 % that is left for another candidate of a search.

    Args:
        taken: For each candidate before it, the share of its planned looks that were taken.

    Returns:
        At least ``LEAST_SHARE``, so that no candidate is hopeless: a search whose candidates used
        up all of their looks spends a tenth more for each further one.
    """
    return max(LEAST_SHARE, 1.0 - sum(math.pow(min(1.0, share), 1.5) for share in taken))


def _chance(centre: float, spread: float, count: int, last: int, last_t: float) -> float:
    """Return how likely the last look will find the config faster.

    Args:
        centre: Mean logarithm of the speedup so far.
        spread: Standard deviation of one process.
        count: Processes so far.
        last: Processes at the last look.
        last_t: How many standard errors wide each half of the last interval is.
    """
    needed = last_t * spread / math.sqrt(last)
    uncertain = spread * math.sqrt((last - count) / (last * count))
    if uncertain == 0.0:
        return float(centre > needed)
    return NORMAL.cdf((centre - needed) / uncertain)


def _around(centre: float, half: float) -> Interval:
    half = min(half, MOST_LOG)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
