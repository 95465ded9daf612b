"""The fence: a search over a program changes none of the user's files, whoever writes.

    overlay     a rig sees the real files through overlays, and its writes are thrown away
    landlock    Python's own functions are redirected inside, and all other writes are denied
    guard       Python's own functions are redirected inside, and that is all: asks for
                --allow-side-effects

``raise_fence()`` takes the strongest that works here. Every command that starts a rig is fenced;
``autotune run`` is not.
"""

from __future__ import annotations

from pathlib import Path

from autotune.errors import FenceError
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.rig.fence.base import Fence, View
from autotune.rig.fence.guard import GuardFence
from autotune.rig.fence.overlay import OverlayFence
from autotune.rig.fence.trial import Refused

__all__ = ["Fence", "View", "describe_fence", "raise_fence"]

# What denies unprivileged mounts, where it says so, and the mend (Ubuntu's and Debian's kernels;
# user_namespaces(7)).
SWITCHES = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor denies it: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "the kernel keeps it for root: sudo sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user namespaces are switched off: sudo sysctl user.max_user_namespaces=10000",
    ),
)


def raise_fence(options: FenceOptions, run_dir: Path) -> Fence:
    """Return the strongest fence that works here, tried out, or the one that was asked for.

    Args:
        options: What the user says of it.
        run_dir: The run directory, one of the places for what trials write.

    Raises:
        FenceError: when none works, with the reasons and what to do.
    """
    wanted = list(FenceKind) if options.kind is None else [options.kind]
    reasons = []
    for kind in wanted:
        if kind is FenceKind.GUARD and not options.allow_side_effects:
            continue
        try:
            fence = _raised(kind, options, run_dir)
        except (Refused, OSError) as refusal:
            reasons.append(f"  {kind}: {refusal}{_switch() if kind is FenceKind.OVERLAY else ''}")
            continue
        if kind is FenceKind.LANDLOCK and reasons:
            fence.doubts = (*fence.doubts, f"Overlays would cover more.{_on_one_line(reasons)}")
        return fence
    mend = (
        "Mend one of these; or search with --allow-side-effects, when the program writes nothing "
        "that matters: only Python's own functions are guarded then."
    )
    complaint = "Nothing here keeps a program's trials from changing your files:"
    raise FenceError("\n".join([complaint, *reasons, mend]))


def describe_fence(options: FenceOptions) -> tuple[str, tuple[str, ...]]:
    """Return what would keep trials from changing files here, and what it would not cover."""
    try:
        with raise_fence(options, Path.cwd()) as raised:
            return raised.sentence, raised.doubts
    except FenceError as error:
        return "Nothing keeps trials from changing your files.", (str(error),)


def _raised(kind: FenceKind, options: FenceOptions, run_dir: Path) -> Fence:
    if kind is FenceKind.OVERLAY:
        return OverlayFence(options, run_dir)
    return GuardFence(options, run_dir, has_landlock=kind is FenceKind.LANDLOCK)


def _switch() -> str:
    """Return which switch of this system denies overlays, and the mend; nothing if none does."""
    for path, value, mend in SWITCHES:
        try:
            if Path(path).read_text(encoding="utf-8").strip() == value:
                return f" ({mend})"
        except OSError:
            continue
    return ""


def _on_one_line(reasons: list[str]) -> str:
    return "".join(f" {reason.strip()}." for reason in reasons)
