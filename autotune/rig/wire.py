"""The messages between the parent and a rig, and the socket that carries them.

Each message is a frozen dataclass, sent as one line of JSON and validated by pydantic. The parent
sends ``ToRig`` messages and the rig ``FromRig`` ones. JSON instead of pickle means that nothing the
program sends can run code in the parent.

Covered: whole messages in order, the end of either side, a wrong protocol version. No other process
can connect: the rig inherits one end of a pair of sockets that have no name.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from autotune.errors import DEFECT, RigError
from autotune.machine.hardware import Gpu
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.outcome import Epochs
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import FenceKind
from autotune.program.profile import Profile
from autotune.program.program import Program
from autotune.program.rehearsal import RehearsalPlan, Seen

IMPORTED = "imported"  # name of a file in the rig's folder
PROTOCOL = 28  # raised when messages change, so that two versions of autotune refuse to mix
# Of a message. The longest ones hold the trace of a rehearsal: some 100 bytes a step and a digest
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Start:
    """The first message to a rig: run this program.

    Attributes:
        applied: The config to start under; None runs the program as it is written.
        shadow_dir: Folder for what Python's functions write, under a guard.
        open_places: Folders that the program may change under a guard.
        rehearsal: Run with short epochs instead, to see what happens between and after them.
        allowed_cores: The numbers of the cores that the parent may use.
        bare: Run without seams instead, to see if the program fails without autotune's hooks.
    """

    program: Program
    applied: AppliedConfig | None
    shadow_dir: str
    fence: FenceKind
    open_places: tuple[str, ...] = ()
    rehearsal: RehearsalPlan | None = None
    allowed_cores: tuple[int, ...] = ()
    bare: bool = False
    protocol: int = PROTOCOL
    kind: Literal["start"] = "start"


@dataclass(frozen=True)
class TakeTurns:
    """Let configs take turns, by a schedule; the answer is ``TookTurns`` with the same number.

    Attributes:
        configs: The configs in play; turns name them by their place here.
        schedule: The turns in their order.
        with_loads: Whether several ranks record afterwards how they spend their time.
    """

    configs: tuple[AppliedConfig, ...]
    schedule: tuple[PlannedTurn, ...]
    number: int = 0
    with_loads: bool = False
    kind: Literal["take_turns"] = "take_turns"


@dataclass(frozen=True)
class ProfileStep:
    """Profile the parts of a step under the config that had the last turn.

    The answer is ``StepProfiled`` with the same number.
    """

    stage_s: float
    number: int = 0
    kind: Literal["profile_step"] = "profile_step"


@dataclass(frozen=True)
class Examine:
    """Look at the program besides its speed, as ``autotune doctor`` does.

    The answer is ``Examined`` with the same number.
    """

    number: int = 0
    kind: Literal["examine"] = "examine"


@dataclass(frozen=True)
class Close:
    """End at once, so that none of the program's own code runs again, not even its clean-up."""

    kind: Literal["close"] = "close"


@dataclass(frozen=True)
class Ready:
    """The program trains: its first steps were observed, and it waits for a command.

    Attributes:
        startup_s: Seconds from the start of the rig's process to this message.
        downloaded_to: Folders to which the program downloaded data before its first step.
        first_step_s: Seconds from the start of the rig's process to the end of the first step.
        devices: What its torch says of these devices, in its order, and which of them it uses; of
            several ranks, those of all. Empty if it trains on the CPU.
    """

    profile: Profile
    startup_s: float
    downloaded_to: tuple[str, ...] = ()
    first_step_s: float | None = None
    devices: tuple[Gpu, ...] = ()
    protocol: int = PROTOCOL
    kind: Literal["ready"] = "ready"


Phase = Literal["start-up", "turns", "between epochs"]


@dataclass(frozen=True)
class Progress:
    """A sign of life, from which the parent sees that the program does not hang.

    Before ``Ready`` it is sent after the first steps, and now and then while there is no step;
    afterwards, every few seconds.

    Attributes:
        steps: Optimizer steps made so far; given before ``Ready`` only.
        elapsed_s: Seconds since the rig's start; given before ``Ready`` only.
        unseen: Signs of training of which no step could be seen, as a clause; empty if none.
    """

    phase: Phase
    steps: int = 0
    elapsed_s: float = 0.0
    doing: str = ""
    unseen: str = ""
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True)
class Warned:
    """A sentence that the user should read, about something that may spoil the result."""

    sentence: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True)
class AskedInput:
    """The program read its standard input, which is empty."""

    prompt: str
    kind: Literal["asked_input"] = "asked_input"


@dataclass(frozen=True)
class Imported:
    """The program imports a file of the user's, or the file is its script.

    It is not sent: any process of the program adds it, as a line, to the file ``IMPORTED``.

    Attributes:
        digest: SHA-256 of its content.
        changed_ns: When that was last changed, in nanoseconds since 1970.
    """

    path: str
    digest: str
    changed_ns: int
    kind: Literal["imported"] = "imported"


@dataclass(frozen=True)
class TookTurns:
    """The answer to the ``TakeTurns`` of the same number."""

    taken: Taken
    number: int = 0
    kind: Literal["took_turns"] = "took_turns"


@dataclass(frozen=True)
class StepProfiled:
    """The answer to the ``ProfileStep`` of the same number; empty if there are several ranks."""

    breakdown: StepBreakdown
    number: int = 0
    kind: Literal["step_profiled"] = "step_profiled"


@dataclass(frozen=True)
class Examined:
    """The answer to the ``Examine`` of the same number; empty if there are several ranks."""

    examination: Examination
    number: int = 0
    kind: Literal["examined"] = "examined"


@dataclass(frozen=True)
class Rehearsed:
    """What was seen of a program's short epochs; ``Ended`` follows if the program itself ended."""

    seen: Seen
    kind: Literal["rehearsed"] = "rehearsed"


@dataclass(frozen=True)
class Ended:
    """The final message of a rig: the program returned, raised, or called ``sys.exit()``.

    Ranks other than the first write it to a file of the rig's folder instead.

    Attributes:
        exception: Class name and message of the exception; empty if there was none, and for an
            exit with code 0.
        at_s: When it ended, by ``time.time()``, so that ranks can be put in order.
        unseen: Signs of training of which no step could be seen, as a clause; empty if none.
        steps_under_config: How many of the steps were made under the present config.
        is_device_full: Whether a GPU had no memory left.
        suspect: The way to end epochs that may avoid this failure; None if epochs are not the
            likely cause.
    """

    steps: int
    exception: str
    traceback: str
    exit_code: int
    rank: int = 0
    at_s: float = 0.0
    unseen: str = ""
    steps_under_config: int = 0
    is_device_full: bool = False
    suspect: Epochs | None = None
    kind: Literal["ended"] = "ended"


ToRig = Start | TakeTurns | ProfileStep | Examine | Close
FromRig = (
    Ready
    | Progress
    | Warned
    | AskedInput
    | Imported
    | TookTurns
    | StepProfiled
    | Examined
    | Rehearsed
    | Ended
)
Message = Annotated[ToRig | FromRig, Field(discriminator="kind")]


@cache  # built once, at the first message
def _adapter() -> TypeAdapter[ToRig | FromRig]:
    return TypeAdapter(Message)


def encode(message: ToRig | FromRig) -> bytes:
    """Return a message as one line of JSON, newline included."""
    # json and not pydantic writes the text, because file names may contain bytes that are not valid
    # UTF-8 (PEP 383), which pydantic refuses.
    return json.dumps(_adapter().dump_python(message, mode="json")).encode() + b"\n"


def decode(line: bytes) -> ToRig | FromRig:
    """Return the message in a line.

    Raises:
        RigError: when the line is not a message, or comes from another version of autotune.
    """
    try:
        message = _adapter().validate_python(json.loads(line))
    except (ValueError, RecursionError) as error:  # pydantic's and json's own are ValueErrors
        raise RigError(
            f"{DEFECT}a message between autotune and the process that runs your program cannot be "
            f"read: {line[:200]!r} ({error})"
        ) from error
    protocol = getattr(message, "protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise RigError(
            "Two versions of autotune are mixed on the import path (protocols "
            f"{protocol} and {PROTOCOL}). Reinstall autotune."
        )
    return message


class LinkClosed(ConnectionError):
    """The process at the other side of the wire has ended or closed it."""


class Link:
    """One side of the wire, for the parent as for the rig.

    Several threads may send at once; only one may receive.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that hold no end of a line
        self._sending = threading.Lock()

    def send(self, message: ToRig | FromRig) -> None:
        """Send a message, and wait until the kernel has taken all of it.

        Raises:
            LinkClosed: when the other side has gone.
        """
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> ToRig | FromRig | None:
        """Return the next message, or None if no whole message came in time.

        Part of a message is kept for the next call.

        Raises:
            LinkClosed: when the other side has gone and all its messages are read.
            RigError: when a line is not a message, or longer than ``MOST_BYTES``.
        """
        until = None if timeout_s is None else monotonic() + timeout_s
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > MOST_BYTES:
                raise RigError(
                    f"The program's process sent a message of more than {MOST_BYTES:,} bytes, and "
                    "autotune's are shorter. Does the program write to file descriptors by number?"
                )
            if (chunk := self._chunk(until)) is None:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return decode(line)

    def _chunk(self, until: float | None) -> bytes | None:
        """Return the next bytes; None if none came until a time, by ``monotonic()``."""
        left_s = None if until is None else until - monotonic()
        try:
            self._socket.settimeout(left_s and max(0.0, left_s))
            chunk = self._socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError as error:
            raise LinkClosed(str(error)) from error
        finally:
            self._socket.settimeout(None)
        if not chunk:
            raise LinkClosed("end of stream")
        return chunk

    def messages(self) -> Iterator[ToRig | FromRig]:
        """Yield messages until the other side has gone; then end, without an error."""
        while True:
            try:
                message = self.receive()
            except LinkClosed:
                return
            if message is not None:
                yield message

    def close(self) -> None:
        """Close this side; the other one then receives ``LinkClosed``."""
        self._socket.close()
