"""TensorBoard: scalars, hparams and texts in an event file, written without torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.integrations.tracked_result import BEST, PREFIX, REPORT, TrackedResult
from autotune.integrations.trackers.base import Logged, Tracker


class TensorBoard(Tracker):
    """Logs to an event file in a folder, which may hold the event files of a training already.

    A run of TensorBoard is a folder. A ``SummaryWriter`` stands for the folder that it writes to.
    """

    name = "tensorboard"
    tool = "TensorBoard"
    module = "tensorboard"
    extra = "tensorboard"

    def _log(self, library: Any, result: TrackedResult, run: object) -> Logged:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = _folder(run)
        writer = EventFileWriter(str(folder))
        try:
            for summary in _summaries(result):
                writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))
        finally:
            writer.close()
        return Logged(str(folder), {REPORT: "TensorBoard shows no pages"})

    def _start(
        self, library: Any, result: TrackedResult, folder: Path
    ) -> AbstractContextManager[object]:
        return nullcontext(folder)

    def _refusals(self, library: Any) -> tuple[type[Exception], ...]:
        return ()


def _folder(run: object) -> Path:
    if run is None:
        raise UsageError(
            "TensorBoard knows no active run: name a folder or a SummaryWriter, such as "
            "autotune.log(result, to='tensorboard', run='runs/search')."
        )
    folder = getattr(run, "log_dir", run)
    if not isinstance(folder, str | Path):
        raise UsageError(f"TensorBoard takes a folder or a SummaryWriter, not {run!r}.")
    return Path(folder)


def _summaries(result: TrackedResult) -> Iterator[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    if result.params:
        yield hparams_pb(dict(result.params), trial_id=result.search)
    for name, value in result.metrics.items():
        yield Summary(value=[Summary.Value(tag=name, simple_value=value)])
    for name, text in result.tags.items():
        yield _text(name, text)
    # Indented, because TensorBoard reads texts as Markdown
    yield _text(f"{PREFIX}{BEST}", "".join(f"    {line}\n" for line in _lines(result)))


def _lines(result: TrackedResult) -> list[str]:
    return result.files[BEST].splitlines()


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    described = create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=tensor)])
