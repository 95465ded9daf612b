"""The fence: it keeps the trials of a search from changing the user's files.

A search runs the user's program many times. Without a fence each trial would overwrite checkpoints,
logs and results. There are three kinds, from the strongest to the weakest:

    overlay     the trial sees the real files through overlays, and its writes are thrown away
    landlock    writes by Python's own functions are redirected, and all others are denied
    guard       writes by Python's own functions are redirected, and all others are real; taken
                only where the user names it

``raise_fence()`` takes the strongest that works on this machine. Every command that starts a rig
uses a fence; ``autotune run`` does not, because the user wants its results.
"""

from __future__ import annotations

from pathlib import Path

from autotune.errors import FenceError
from autotune.files.access import HOME
from autotune.files.scratch import sweep
from autotune.machine.kernel_files import text_of
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.rig.fence.base import Fence, Refused, View
from autotune.rig.fence.guard import GuardFence
from autotune.rig.fence.overlay import OverlayFence
from autotune.rig.fence.room import candidates

__all__ = ["Fence", "View", "describe_fence", "raise_fence"]

# Settings that deny mounts to ordinary users: file, value, and how to change it. The first is of
# Ubuntu's kernels, the second of Debian's; for the third see user_namespaces(7).
SWITCHES = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        (
            "AppArmor forbids overlays; to allow them: "
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        ),
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        (
            "the kernel allows overlays to root only; to change that: "
            "sudo sysctl kernel.unprivileged_userns_clone=1"
        ),
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        (
            "user namespaces are switched off; to switch them on: "
            "sudo sysctl user.max_user_namespaces=10000"
        ),
    ),
)


def raise_fence(options: FenceOptions, run_dir: Path) -> Fence:
    """Return the strongest fence that works here, or the one that the user requested.

    Each kind is tried out with a short process, because the kernel, a container or a network file
    system may refuse it. The guard is never taken unless the user named it. The caller closes the
    fence.

    Raises:
        FenceError: when no fence works, with the reason for each kind and what to do.
    """
    unnamed = [kind for kind in FenceKind if kind is not FenceKind.GUARD]
    wanted = unnamed if options.kind is None else [options.kind]
    reasons = []
    # What searches have left whose removers were killed with them, in their own folders too
    runs = run_dir.parent.iterdir() if run_dir.parent.name == HOME else ()
    for place in (*candidates(options.scratch_dir, run_dir), *runs):
        sweep(place)
    for kind in wanted:
        try:
            fence: Fence = (
                OverlayFence(options, run_dir)
                if kind is FenceKind.OVERLAY
                else GuardFence(options, run_dir, has_landlock=kind is FenceKind.LANDLOCK)
            )
        except (Refused, OSError) as refusal:
            reasons.append(f"  {kind}: {refusal}{_switch() if kind is FenceKind.OVERLAY else ''}")
            continue
        if kind is FenceKind.LANDLOCK and reasons:
            better = "The overlay fence would protect more files, but does not work here:"
            named = f"{FenceKind.OVERLAY}: "
            told = "".join(f" {reason.strip().removeprefix(named)}." for reason in reasons)
            fence.warnings = (*fence.warnings, better + told)
        return fence
    mend = (
        "Mend one of these; or search with --fence guard, when the program writes nothing "
        "that matters: only Python's own functions are guarded then."
    )
    complaint = "Nothing here keeps a program's trials from changing your files:"
    raise FenceError("\n".join([complaint, *reasons, mend]))


def describe_fence(options: FenceOptions) -> tuple[str, tuple[str, ...]]:
    """Return which fence a search here would use, as a sentence, and what it would not cover.

    If none works, the first sentence says so and the second part holds the reasons.
    """
    try:
        with raise_fence(options, Path.cwd()) as raised:
            return raised.sentence, raised.warnings
    except FenceError as error:
        return "Nothing keeps trials from changing your files.", (str(error),)


def _switch() -> str:
    """Return the system setting that denies overlays and how to change it, in parentheses."""
    found = (mend for path, value, mend in SWITCHES if text_of(Path(path)).strip() == value)
    return next((f" ({mend})" for mend in found), "")
