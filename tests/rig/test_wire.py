"""The wire: whole, validated messages in both directions, and a clear end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import get_args

import pytest

from autotune.errors import RigError
from autotune.measurement.examination import (
    Affinity,
    Examination,
    ItemsExamined,
    MemoryGrowth,
    Operators,
    StepBreakdown,
)
from autotune.measurement.readings import Compilation, Interference, Memory, RankLoad
from autotune.measurement.turn import PlannedTurn, Taken, Turn
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.program.rehearsal import RehearsalPlan, Seen
from autotune.rig.link import Link, LinkClosed
from autotune.rig.wire import (
    PROTOCOL,
    AskedInput,
    Close,
    Ended,
    Examine,
    Examined,
    FromRig,
    ProfileStep,
    Progress,
    Ready,
    Rehearsed,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
    Warned,
    decode,
    encode,
)
from tests.made import (
    A100,
    PROGRAM,
    changed,
    make_applied,
    make_loader,
    make_profile,
)
from tests.readings import MIG_GPU, unused

APPLIED = make_applied(
    {"batch_size": 128, "keep_freed_memory": True, "precision": "bf16"},
    lr_rule=LrRule.SQRT,
    program_knobs=("hidden",),
)
MESSAGES: dict[str, ToRig | FromRig] = {
    "start untouched": Start(PROGRAM, None, "/run/rigs/001/files", FenceKind.LANDLOCK),
    "start under a setting": Start(
        PROGRAM,
        APPLIED,
        "/run/größe 'and' \"quotes\"/files",
        FenceKind.OVERLAY,
        open_places=("/home/me/.cache",),
    ),
    "warned": Warned("data.bin is copied first."),
    "asked input": AskedInput("Where is the data set?"),
    "profile_step": ProfileStep(0.5, 8),
    "take turns": TakeTurns((APPLIED,), (PlannedTurn(0, 3),), 4, with_loads=True),
    "take turns without a loader": TakeTurns(
        (changed(APPLIED, loader=None), APPLIED), (PlannedTurn(0, 3), PlannedTurn(1, 2)), 5
    ),
    "took turns": TookTurns(
        Taken(
            (Turn(0, (0.1, 0.2), (8, 8), 0.001, (1,), 0.1, 80, 0.5, is_quiet=False),),
            steps=70,
            samples_per_epoch=60_000,
            memory=Memory(1, 2, None, 4),
            power_w=250.0,
            compilation=Compilation(1.0, 2, 3, 4),
            ranks=(RankLoad(0, 0.1, 0.01, None, 0.02), RankLoad(1, 0.1, 0.01, 0.05, 0.02)),
            interference=Interference(0.5, gpu=("another process was on the GPU",)),
        ),
        4,
    ),
    "step_profiled": StepProfiled(StepBreakdown(), 8),
    "examine": Examine(9),
    "examined": Examined(
        Examination(
            items=ItemsExamined(3, 0.5, 0.25, where="größe.py:3"),
            operators=Operators(200, 3e-6),
            affinity=Affinity((0, 1), (0,), ((0,), (1,))),
            growth=MemoryGrowth(4, (1, 2), ()),
        ),
        9,
    ),
    "close": Close(),
    "ready": Ready(
        make_profile(loaders=(make_loader(), make_loader(batch_size=None, dataset_len=None))), 2.5
    ),
    "ready on GPUs": Ready(
        make_profile(device="cuda"), 2.5, gpus=2, devices=(MIG_GPU, unused(A100))
    ),
    "ready with a config of its own": Ready(make_profile(config_reads={"hidden": 64}), 2.5),
    "progress": Progress("start-up", 3, 1.5, "imports", "a backward pass"),
    "start of a rehearsal": Start(
        PROGRAM, APPLIED, "/run", FenceKind.OVERLAY, rehearsal=RehearsalPlan(most_s=9.5)
    ),
    "rehearsed": Rehearsed(Seen(6, 2, 1, "out of time", 0.25)),
    "ended": Ended(17, "ValueError: two\nlines", "Traceback …\n\x1b[31m", 1),
}


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    """A link and the raw socket at its other end."""
    here, there = socket.socketpair()
    link = Link(here)
    yield link, there
    link.close()
    there.close()


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    here, there = socket.socketpair()
    one, other = Link(here), Link(there)
    yield one, other
    one.close()
    other.close()


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_every_message_is_one_line_and_is_read_back(message: ToRig | FromRig) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert repr(decode(line)) == repr(message), "True stays True and is not 1"
    kinds = {type(message) for message in MESSAGES.values()}
    assert kinds == {*get_args(ToRig), *get_args(FromRig)}


def test_a_message_of_any_text_can_be_sent() -> None:
    """File names that are no UTF-8 stand in exceptions with surrogates (PEP 383)."""
    message = decode(encode(Ended(0, "FileNotFoundError: 'gr\udcf6sse.csv'", "…", 1)))
    assert isinstance(message, Ended)
    assert message.exception.startswith("FileNotFoundError: 'gr")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"Epoch 1: loss 0.5\n",
        b"{}\n",
        b'{"kind": "dance"}\n',
        b'{"kind": "progress"}\n',
        b'{"kind": "progress", "phase": "lunch"}\n',
        b'{"kind": "close"\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_message_is_an_error_that_shows_it(line: bytes) -> None:
    with pytest.raises(RigError, match="cannot be read") as refusal:
        decode(line)
    assert repr(line[:200]) in str(refusal.value)


@pytest.mark.parametrize("name", ["start untouched", "ready"])
@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1])
def test_another_protocol_is_an_error_with_the_mend(name: str, protocol: int) -> None:
    foreign = {**json.loads(encode(MESSAGES[name])), "protocol": protocol}
    with pytest.raises(RigError, match=rf"\(protocols {protocol} and .*\. Reinstall"):
        decode(json.dumps(foreign).encode())


# --- the link -------------------------------------------------------------------------------------


def test_a_peer_that_has_gone_ends_the_link_after_its_last_whole_word(
    links: tuple[Link, Link], pair: tuple[Link, socket.socket]
) -> None:
    one, other = links
    assert one.receive(0.0) is None
    for message in (Close(), Progress("turns")):
        other.send(message)
    other.close()
    assert list(one.messages()) == [Close(), Progress("turns")]
    link, there = pair
    there.sendall(b'{"kind": "close"')
    there.close()
    with pytest.raises(LinkClosed):
        link.receive(1.0)
    with pytest.raises(LinkClosed):
        link.send(Close())


def test_a_line_that_arrives_in_pieces_is_one_message(
    pair: tuple[Link, socket.socket],
) -> None:
    link, there = pair
    line = encode(MESSAGES["took turns"])
    for start in range(0, len(line), 100):
        assert link.receive(0.001) is None
        there.sendall(line[start : start + 100])
    assert link.receive(1.0) == MESSAGES["took turns"]
