"""``python -m autotune.inside SOCKET``: a rig. Connects to the parent, then runs the program."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import psutil

from autotune.inside import launch
from autotune.wire import Ended, Link, LinkClosed, Start, ToRig


def main(socket_path: str) -> int:
    """Run one rig; return the exit code of the program."""
    started = perf_counter()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(socket_path)
    link = Link(connection)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    scratch = Path(socket_path).parent
    threading.Thread(target=_listen, args=(link, commands, scratch), daemon=True).start()
    start = commands.get()
    assert isinstance(start, Start), "the parent speaks first, and says Start"
    try:
        return _run(link, commands, start, started)
    except LinkClosed:
        _quit()
        return 1


def _run(link: Link, commands: queue.SimpleQueue[ToRig], start: Start, started: float) -> int:
    from autotune.inside.driver import Driver  # imports torch: the parent's end is watched by now

    driver = Driver(link, commands, start, started, _quit)
    seams = driver.seams
    seams.install()
    program = start.program
    seams.redirect_files(Path(start.shadow_dir), is_first=start.setting is None)
    config = launch.RecordedConfig(start.setting.config if start.setting else {})
    driver.config_reads = config.reads
    if start.setting is None:
        seams.watch()
    else:
        seams.apply(start.setting)
    exception, trace, exit_code = "", "", 0
    try:
        launch.run(program, config, seams.flags.see_keywords)
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        exception = f"SystemExit: {end.code}" if exit_code else ""
    except LinkClosed:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever ends the program is its answer
        exit_code = 1
        exception = "".join(traceback.format_exception_only(error)).strip()
        shown = traceback.format_exception(
            type(error), error, launch.own_frames(error.__traceback__)
        )
        trace = "".join(shown)
        sys.stderr.write(trace)
    driver.program_ended()
    link.send(Ended(driver.steps, exception, trace, exit_code))
    _quit(exit_code)
    return exit_code


def _listen(link: Link, commands: queue.SimpleQueue[ToRig], scratch: Path) -> None:
    """Read the parent's commands; when the parent has gone, whatever way, the rig goes too."""
    for message in link.messages():
        commands.put(message)  # type: ignore[arg-type]
    for leftover in (scratch, Path(os.environ.get("TMPDIR", scratch))):
        if leftover.name.startswith("autotune-"):
            shutil.rmtree(leftover, ignore_errors=True)
    _quit(1)


def _quit(exit_code: int = 0) -> None:
    """End this process and all it started, at once: no code of the program runs any more."""
    try:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the program may have put anything in the place of sys.stdout
        os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
