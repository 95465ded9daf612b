"""The wire: whole, validated messages in both directions, and a clear end."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from itertools import product
from time import monotonic, sleep
from typing import get_args

import pytest

from autotune.errors import RigError
from autotune.measurement.examination import (
    Affinity,
    Batches,
    Examination,
    ItemsExamined,
    MemoryGrowth,
    Operators,
    Padding,
    StepBreakdown,
)
from autotune.measurement.readings import Compilation, Interference, Memory, RankLoad
from autotune.measurement.turn import PlannedTurn, Taken, Turn
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.program.rehearsal import RehearsalPlan, Seen
from autotune.rig import wire
from autotune.rig.wire import (
    PROTOCOL,
    AskedInput,
    Close,
    Ended,
    Examine,
    Examined,
    FromRig,
    Imported,
    Link,
    LinkClosed,
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
from tests.gpu_fakes import MIG_GPU, unused
from tests.made import (
    A100,
    PROGRAM,
    changed,
    make_applied,
    make_loader,
    make_profile,
)

APPLIED = make_applied(
    {"batch_size": 128, "keep_freed_memory": True, "precision": "bf16"},
    lr_rule=LrRule.SQRT,
    program_knobs=("hidden",),
)
OVERLAY = FenceKind.OVERLAY
TWO = RankLoad(0, 0.1, 0.01, None, 0.02), RankLoad(1, 0.1, 0.01, 0.05, 0.02)
TAKEN = Taken(
    (Turn(0, (0.1, 0.2), (8, 8), 0.001, (1,), 0.1, 80, 0.5, is_quiet=False),),
    steps=70,
    samples_per_epoch=60_000,
    memory=Memory(1, 2, None, 4),
    power_w=250.0,
    compilation=Compilation(1.0, 2, 3, 4),
    ranks=TWO,
    interference=Interference(0.5, gpu=("another process was on the GPU",)),
)
EXAMINATION = Examination(
    items=ItemsExamined(3, 0.5, 0.25, where="größe.py:3"),
    affinity=Affinity((0, 1), (0,), ((0,), (1,))),
    growth=MemoryGrowth(4, (1, 2), ()),
)
BATCHES = Batches(9, 3, Padding(0.4, 0.65, 0.9, "größe_mask"))
PROFILE = make_profile(
    loaders=(make_loader(), make_loader(batch_size=None, dataset_len=None)),
    config_reads={"hidden": 64},
)
START = Start(PROGRAM, None, "/run/rigs/001/files", FenceKind.LANDLOCK)
TOOK_TURNS = TookTurns(TAKEN, 4)
READY = Ready(PROFILE, 2.5, devices=(MIG_GPU, unused(A100)))
MESSAGES: tuple[ToRig | FromRig, ...] = (
    START,
    Start(PROGRAM, APPLIED, "/run/größe 'and' \"quotes\"", OVERLAY, open_places=("/home/me/a",)),
    Start(PROGRAM, APPLIED, "/run", OVERLAY, rehearsal=RehearsalPlan(most_s=9.5)),
    Warned("data.bin is copied first."),
    AskedInput("Where is the data set?"),
    Imported("/home/me/größe.py", "ab" * 32, 1),
    ProfileStep(0.5, 8),
    TakeTurns((changed(APPLIED, loader=None), APPLIED), (PlannedTurn(0, 3),), 5, with_loads=True),
    TOOK_TURNS,
    StepProfiled(StepBreakdown(), 8),
    StepProfiled(StepBreakdown(operators=Operators(200, 3e-6, 0.01), batches=BATCHES), 9),
    Examine(9),
    Examined(EXAMINATION, 9),
    Close(),
    READY,
    Progress("start-up", 3, 1.5, "imports", "a backward pass"),
    Rehearsed(Seen(6, 2, 1, "out of time", 0.25)),
    Ended(17, "ValueError: two\nlines", "Traceback …\n\x1b[31m", 1),
)


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    here, there = socket.socketpair()
    link = Link(here)
    yield link, there
    link.close()
    there.close()


def test_every_message_is_one_line_and_is_read_back() -> None:
    for message in MESSAGES:
        line = encode(message)
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert repr(decode(line)) == repr(message), "True stays True and is not 1"
    assert {type(message) for message in MESSAGES} == {*get_args(ToRig), *get_args(FromRig)}
    # File names that are not UTF-8 stand in exceptions with surrogates (PEP 383)
    read = decode(encode(Ended(0, "FileNotFoundError: 'gr\udcf6sse.csv'", "…", 1)))
    assert isinstance(read, Ended)
    assert read.exception.startswith("FileNotFoundError: 'gr")


def test_what_is_not_a_message_or_of_another_protocol_is_an_error_with_the_mend() -> None:
    for said in ("", "Epoch 1: loss 0.5", "{}", '{"kind": "dance"}', '{"kind": "close"', "\xff"):
        with pytest.raises(RigError, match="cannot be read") as refusal:
            decode(said.encode("latin-1"))
        assert repr(said.encode("latin-1")) in str(refusal.value)
    for line, protocol in product((encode(START), encode(READY)), (0, PROTOCOL + 1)):
        foreign = {**json.loads(line), "protocol": protocol}
        with pytest.raises(RigError, match=rf"\(protocols {protocol} and .*\. Reinstall"):
            decode(json.dumps(foreign).encode())


def test_a_line_in_pieces_is_one_message_and_a_peer_that_has_gone_ends_the_link(
    pair: tuple[Link, socket.socket],
) -> None:
    link, there = pair
    line = encode(TOOK_TURNS)
    for start in range(0, len(line), 100):
        assert link.receive(0.001) is None
        there.sendall(line[start : start + 100])
    assert link.receive(1.0) == TOOK_TURNS
    there.sendall(encode(Close()) + encode(Progress("turns")) + b'{"kind": "close"')
    there.close()
    assert list(link.messages()) == [Close(), Progress("turns")], "its last whole words"
    with pytest.raises(LinkClosed):
        link.receive(1.0)
    with pytest.raises(LinkClosed):
        link.send(Close())


def test_a_message_that_comes_byte_by_byte_or_never_ends_holds_nobody_up(
    pair: tuple[Link, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, there = pair
    until = monotonic() + 1.0

    def drip() -> None:
        while monotonic() < until:
            there.sendall(b"x")
            sleep(0.01)

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert link.receive(0.05) is None
    assert monotonic() < until, "the time is for the whole message, not for each part of it"
    dripping.join()
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    there.sendall(b"x" * 2000)
    with pytest.raises(RigError, match="a message of more than 1,000 bytes"):
        link.receive(1.0)
