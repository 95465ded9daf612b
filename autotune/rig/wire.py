"""The messages between the parent and a rig: JSON lines over one Unix socket, versioned, validated.

Covered: whole messages in order, the end of either side, a wrong protocol version. Nobody else can
speak here: the rig inherits one end of a pair of sockets that have no name.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from autotune.errors import RigError
from autotune.measurement.measurement import Measurement, StepBreakdown
from autotune.measurement.run_mode import Epochs
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.profile import Profile
from autotune.program.program import Program
from autotune.program.rehearsal import RehearsalPlan, Seen

PROTOCOL = 7
# Longer steps are too dear for evidence from many blocks: one is left out and two are taken. At 0.5
# s per step the ordinary least, six blocks of warm-up and five that count, would take 6 s.
SLOW_STEP_S = 0.5


@dataclass(frozen=True)
class WindowPlan:
    """How long a rig measures one config.

    Attributes:
        warmup_min_s: Steps run at least this long before any counts.
        warmup_max_s: Warm-up is cut here, and said to be.
        window_min_s: Blocks are measured at least this long.
        window_max_s: The window ends here, however wide the interval.
        half_width: Relative half-width of the interval at which the window ends.
        give_up_below: Samples/s; a config that is clearly slower is not measured to the end.
        most_s: The answer comes so long after the question, with what was seen until then; only
            where that is less than one block, the question stays open. None: as long as it takes.
    """

    warmup_min_s: float
    warmup_max_s: float
    window_min_s: float
    window_max_s: float
    half_width: float = 0.02
    give_up_below: float | None = None
    most_s: float | None = None


@dataclass(frozen=True)
class Start:
    """First message to a rig: run this program; without a setting, untouched.

    Attributes:
        shadow_dir: Where what Python writes goes, under a fence that needs it.
        fence: What keeps the program from changing the user's files.
        open_places: Folders that the program may change under such a fence.
        devices: Under overlays: the device numbers of what they cover, by path.
        max_scratch_bytes: What the program may write.
        rehearsal: Run it with short epochs instead, to see what lies between and after them.
        bare: Run it without seams instead, to see what it does by itself.
    """

    program: Program
    setting: AppliedConfig | None
    shadow_dir: str
    fence: FenceKind
    open_places: tuple[str, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)
    max_scratch_bytes: int | None = None
    rehearsal: RehearsalPlan | None = None
    bare: bool = False
    protocol: int = PROTOCOL
    kind: Literal["start"] = "start"


@dataclass(frozen=True)
class Measure:
    """Switch to this config, if it is another, and measure it; the answer has its number."""

    setting: AppliedConfig
    plan: WindowPlan
    number: int = 0
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True)
class Dissect:
    """Take the program apart under the config that was measured last; as Measure, numbered."""

    plan: WindowPlan
    number: int = 0
    kind: Literal["dissect"] = "dissect"


@dataclass(frozen=True)
class Close:
    """End now: no code of the program runs any more."""

    kind: Literal["close"] = "close"


@dataclass(frozen=True)
class Ready:
    """The program trains; its first steps were observed and it waits at a step's border.

    Attributes:
        downloaded_to: Folders to which the program downloaded data.
        gpus: CUDA devices that the program can use.
    """

    profile: Profile
    startup_s: float
    downloaded_to: tuple[str, ...] = ()
    gpus: int = 0
    protocol: int = PROTOCOL
    kind: Literal["ready"] = "ready"


Phase = Literal["start-up", "warm-up", "window", "between epochs"]


@dataclass(frozen=True)
class Progress:
    """A sign of life: after each block, and before Ready after each step and while there is none.

    Attributes:
        phase: What the program is in; between true epochs it may be silent for long.
        samples_per_s: Of the last block, 0 without one.
        steps: Optimizer steps made before Ready.
        elapsed_s: Seconds from the rig's start to the last of these, to now where there is none.
        doing: What the program does instead of a step, empty where that is not known.
        unseen: What was seen of training without any step, as a clause; empty for nothing.
    """

    phase: Phase
    samples_per_s: float
    steps: int = 0
    elapsed_s: float = 0.0
    doing: str = ""
    unseen: str = ""
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True)
class Doubted:
    """Something about the program that the user should read."""

    sentence: str
    kind: Literal["doubted"] = "doubted"


@dataclass(frozen=True)
class AskedInput:
    """The program read its standard input, which is empty; with the line that it printed last."""

    prompt: str
    kind: Literal["asked_input"] = "asked_input"


@dataclass(frozen=True)
class Measured:
    """The answer to the Measure of this number.

    Attributes:
        steps: Optimizer steps that the program has made in all.
    """

    measurement: Measurement
    number: int = 0
    steps: int = 0
    kind: Literal["measured"] = "measured"


@dataclass(frozen=True)
class Dissected:
    """The answer to the Dissect of this number."""

    breakdown: StepBreakdown
    number: int = 0
    kind: Literal["dissected"] = "dissected"


@dataclass(frozen=True)
class NotFinite:
    """The answer to a Measure where the loss became NaN or infinite under its config."""

    config: Config
    number: int = 0
    kind: Literal["not_finite"] = "not_finite"


@dataclass(frozen=True)
class Rehearsed:
    """What was seen of a program's short epochs; where it ended by itself, Ended follows."""

    seen: Seen
    kind: Literal["rehearsed"] = "rehearsed"


@dataclass(frozen=True)
class Ended:
    """The program came to its end by itself, by an exception or by sys.exit.

    Attributes:
        steps: Optimizer steps it had made.
        exception: Class name and message of the exception, empty without one.
        exit_code: What the interpreter would have exited with.
        rank: The rank that ended.
        at_s: When, by ``time.time()``.
        unseen: What was seen of training without any step, as a clause; empty for nothing.
        steps_under_config: How many of the steps were made under the present config.
        suspect: How epochs would have to end if these here are the cause; None if they are not.
    """

    steps: int
    exception: str
    traceback: str
    exit_code: int
    rank: int = 0
    at_s: float = 0.0
    unseen: str = ""
    steps_under_config: int = 0
    suspect: Epochs | None = None
    kind: Literal["ended"] = "ended"


ToRig = Start | Measure | Dissect | Close
FromRig = (
    Ready | Progress | Doubted | AskedInput | Measured | Dissected | NotFinite | Rehearsed | Ended
)
Message = Annotated[ToRig | FromRig, Field(discriminator="kind")]


@cache
def _adapter() -> TypeAdapter[ToRig | FromRig]:
    return TypeAdapter(Message)


def encode(message: ToRig | FromRig) -> bytes:
    """Return one line of JSON, newline included."""
    # json, not pydantic, writes the text: file names may hold bytes that are no UTF-8 (PEP 383)
    return json.dumps(_adapter().dump_python(message, mode="json")).encode() + b"\n"


def decode(line: bytes) -> ToRig | FromRig:
    """Return the message in a line.

    Raises:
        RigError: when the line is no message of this version.
    """
    try:
        message = _adapter().validate_python(json.loads(line))
    except ValueError as error:  # pydantic's and json's own are ValueErrors
        raise RigError(f"unreadable message on the wire: {line[:200]!r} ({error})") from error
    protocol = getattr(message, "protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise RigError(
            f"the rig speaks protocol {protocol}, this autotune speaks {PROTOCOL}: two versions of "
            "autotune are mixed on the import path; reinstall one of them"
        )
    return message


class LinkClosed(ConnectionError):
    """The other side has gone."""


class Link:
    """One side of the wire."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, message: ToRig | FromRig) -> None:
        """Send a message.

        Raises:
            LinkClosed: when the other side has gone.
        """
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> ToRig | FromRig | None:
        """Return the next message, or None when none came in time.

        Raises:
            LinkClosed: when the other side has gone.
        """
        while b"\n" not in self._buffer:
            self._socket.settimeout(timeout_s)
            try:
                chunk = self._socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise LinkClosed(str(error)) from error
            finally:
                self._socket.settimeout(None)
            if not chunk:
                raise LinkClosed("end of stream")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line)

    def messages(self) -> Iterator[ToRig | FromRig]:
        """Yield messages until the other side goes."""
        while True:
            try:
                message = self.receive()
            except LinkClosed:
                return
            if message is not None:
                yield message

    def close(self) -> None:
        """Close this side."""
        self._socket.close()
