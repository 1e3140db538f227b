"""Writes event files: all values of a step in one record, on disk before a call returns.

The only writer of events on the training side. Records go through TensorFlow's record writer (the
format TensorBoard reads, local and remote paths alike) and are flushed when told. A write that
fails never ends training: what was not yet safe is kept and written to a new file later.

    >>> with EventWriter(run.train) as writer:
    ...     writer.scalars(1, {'loss': 2.3, 'noise/stddev': 0.01})
    ...     writer.flush()
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import (
    event_pb2,
    summary_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar_metadata
from tensorboard.plugins.histogram import summary_v2 as histogram_summary
from tensorboard.plugins.hparams import summary_v2 as hparams_summary
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.text import summary_v2 as text_summary

from tracker import events, tags

RETRY_SECONDS = 30.0
MOST_PENDING = 1_000_000  # records kept while no file can be written
_COUNTER = itertools.count()


class EventWriter:
    """Writes one directory's event file.

    Args:
      directory: made if missing.
      step: the first step that the file may hold; 0 for a new run.
      place: for a variable's tag its place in the model ('12 of 80'), for descriptions.
      warn: called with one sentence when writing fails, and when it works again.
      clock: seconds since the epoch.

    Attributes:
      lost: steps whose records could not be written, in order; empty if all is on disk.
      seconds: time spent building and writing records so far.
    """

    def __init__(
        self,
        directory: Any,
        step: int = 0,
        place: Callable[[str], str] = lambda tag: "",
        warn: Callable[[str], None] = lambda sentence: None,
        clock: Callable[[], float] = time.time,
    ):
        self._directory = directory
        self._step = step
        self._place = place
        self._warn = warn
        self._clock = clock
        self._pending: list[tuple[int, bytes]] = []
        self._retry_at = 0.0
        self._failing = False
        self._known: set[str] = set()
        self._file: tf.io.TFRecordWriter | None = None
        self.lost: list[int] = []
        self.seconds = 0.0
        directory.mkdir(parents=True, exist_ok=True)
        self._open()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def scalars(self, step: int, values: Mapping[str, float], wall_time: float | None = None):
        """Adds the scalars of a step, in one record."""
        start = time.perf_counter()
        self._add(step, self._scalars(values), wall_time)
        self.seconds += time.perf_counter() - start

    def series(
        self, steps: Sequence[int], values: Mapping[str, np.ndarray], wall_times: Sequence[float]
    ) -> None:
        """Adds the same scalars for many steps, a record each, in a third of the time.

        Args:
          steps: in order.
          values: for each tag one number a step.
          wall_times: seconds since the epoch, one a step.
        """
        if not len(steps):
            return
        first = {tag: float(column[0]) for tag, column in values.items()}
        self.scalars(steps[0], first, wall_times[0])
        start = time.perf_counter()
        # One record is made, and its numbers are changed from step to step.
        event = self._scalars(first)
        numbers = [value.tensor.float_val for value in event.summary.value]
        columns = [np.asarray(column, np.float32).tolist() for column in values.values()]
        for i in range(1, len(steps)):
            for number, column in zip(numbers, columns, strict=True):
                number[0] = column[i]
            self._add(steps[i], event, wall_times[i])
        self.seconds += time.perf_counter() - start

    def summary(self, step: int, summary: summary_pb2.Summary, wall_time: float | None = None):
        """Adds a summary of any kind, its metadata included."""
        start = time.perf_counter()
        self._add(step, event_pb2.Event(summary=summary), wall_time)
        self.seconds += time.perf_counter() - start

    def graph(self, graph_def: bytes) -> None:
        """Adds a serialised GraphDef for the Graphs tab."""
        self._add(0, event_pb2.Event(graph_def=graph_def), None)

    def flush(self) -> None:
        """Puts everything added so far on disk, or keeps it for later if that fails."""
        start = time.perf_counter()
        if self._pending:
            if self._file is None and self._clock() >= self._retry_at:
                self._open()
            if self._file is not None:
                self._write()
        self.seconds += time.perf_counter() - start

    def close(self) -> None:
        """Flushes, and closes the file. What still cannot be written is lost, and in `lost`."""
        self._retry_at = 0.0
        self.flush()
        self.lost = sorted({*self.lost, *(step for step, _ in self._pending)})
        self._pending = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, step: int, event: event_pb2.Event, wall_time: float | None) -> None:
        event.step = step
        event.wall_time = self._clock() if wall_time is None else wall_time
        self._pending.append((step, event.SerializeToString()))
        if len(self._pending) > MOST_PENDING:
            self.lost.append(self._pending.pop(0)[0])

    def _scalars(self, values: Mapping[str, float]) -> event_pb2.Event:
        """Scalars as an event, filled in place: messages made apart are copied, at each level."""
        event = event_pb2.Event()
        for tag, number in values.items():
            value = event.summary.value.add(tag=tag)
            value.tensor.dtype = types_pb2.DT_FLOAT
            value.tensor.float_val.append(number)
            if tag not in self._known:
                self._describe(value)
        return event

    def _describe(self, value: summary_pb2.Summary.Value) -> None:
        """Adds the metadata, which TensorBoard wants on the first value of a tag in each file."""
        self._known.add(value.tag)
        value.metadata.summary_description = tags.description(value.tag, self._place(value.tag))
        value.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
        value.metadata.plugin_data.plugin_name = "scalars"

    def _open(self) -> None:
        """Opens a new file with its opening records; a failure is warned about, once."""
        name = events.file_name(
            self._clock(),
            socket.gethostname(),
            os.getpid(),
            next(_COUNTER),
            existing=events.event_files(self._directory),
        )
        self._path = os.fspath(self._directory / name)
        self._safe = 0
        try:
            self._file = tf.io.TFRecordWriter(self._path)
            for event in events.start_records(self._step):
                self._file.write(event.SerializeToString())
            self._file.flush()
        except tf.errors.OpError as error:
            self._failed(error)
            return
        self._safe = _size(self._path)

    def _write(self) -> None:
        file = self._file
        assert file is not None
        try:
            for _, record in self._pending:
                file.write(record)
            file.flush()
        except tf.errors.OpError as error:
            self._failed(error)
            return
        if self._failing:
            self._warn(f"Writing to {self._directory} works again; nothing was lost meanwhile.")
            self._failing = False
        if not os.path.exists(self._path) and "://" not in self._path:
            # The directory was deleted under us: the records went to a file that has no name.
            self._failed(FileNotFoundError(f"{self._path} was deleted"))
            return
        self._safe += sum(len(record) + 16 for _, record in self._pending)
        self._pending = []

    def _failed(self, error: Exception) -> None:
        """Keeps what is pending for a new file; cuts the old one back to what was safe."""
        if not self._failing:
            self._failing = True
            self._warn(
                f"Cannot write events to {self._directory}: {_first_line(error)}. Training goes "
                f"on; a new file is tried every {RETRY_SECONDS:.0f} s."
            )
        self._retry_at = self._clock() + RETRY_SECONDS
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(tf.errors.OpError):  # what it cannot write is still pending
            file.close()
        with contextlib.suppress(FileNotFoundError):
            if self._safe:
                os.truncate(self._path, self._safe)
            else:
                os.unlink(self._path)
        # A new file needs the metadata of every tag again.
        self._known.clear()
        self._pending = [(s, self._with_metadata(r)) for s, r in self._pending]

    def _with_metadata(self, record: bytes) -> bytes:
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            if value.HasField("metadata"):
                self._known.add(value.tag)
            elif value.tag not in self._known:
                self._describe(value)
        return event.SerializeToString()


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _first_line(error: Exception) -> str:
    text = str(getattr(error, "message", None) or error).strip()
    return text.splitlines()[0].rpartition("; ")[2] if text else type(error).__name__


def histogram(tag: str, data: np.ndarray, place: str = "") -> summary_pb2.Summary:
    """A histogram of the finite values; what is not finite is left out, and counted elsewhere."""
    data = np.asarray(data, np.float64).ravel()
    return histogram_summary.histogram_pb(
        tag, data[np.isfinite(data)], description=tags.description(tag, place)
    )


def text(tag: str, markdown: str) -> summary_pb2.Summary:
    """A text summary, shown as Markdown."""
    return text_summary.text_pb(tag, markdown, description=tags.description(tag))


def image(tag: str, pixels: np.ndarray) -> summary_pb2.Summary:
    """Pictures, uint8 [number, height, width, channels]."""
    count, height, width = pixels.shape[:3]
    pngs = [tf.io.encode_png(one).numpy() for one in pixels]
    content = [str(width).encode(), str(height).encode(), *pngs]
    metadata = image_metadata.create_summary_metadata(
        display_name="", description=tags.description(tag)
    )
    metadata.data_class = summary_pb2.DATA_CLASS_BLOB_SEQUENCE
    shape = tensor_shape_pb2.TensorShapeProto(
        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=count + 2)]
    )
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, string_val=content, tensor_shape=shape
    )
    return summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)]
    )


def hparams(values: Mapping[str, Any], name: str, started: float) -> summary_pb2.Summary:
    """The session record of the HParams tab.

    It is written once, where the validation metrics are: TensorBoard then shows one row for the
    run, typed columns, and exactly these metrics.

    Args:
      values: any types; what is not a bool, number or string is shown as text, None left out.
      name: of the run.
      started: seconds since the epoch.
    """
    shown = {k: _hparam(v) for k, v in values.items() if v is not None}
    return hparams_summary.hparams_pb(shown, trial_id=name, start_time_secs=started)


def _hparam(value: Any) -> bool | float | str:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.integer | np.floating):
        return float(value)
    if isinstance(value, tuple | list):
        return ",".join(str(_shortest(v)) for v in value)
    return str(value)


def _shortest(value: Any) -> Any:
    return tags.number(value) if isinstance(value, float) else value


def layout(variables: Sequence[str]) -> summary_pb2.Summary:
    """The Custom Scalars page for this job.

    Args:
      variables: canonical paths of the measured variables.
    """
    band = [tags.WUR_ALL_BAND_LOW, tags.WUR_ALL_BAND_HIGH]
    ratios = [tags.wur(v) for v in variables]
    parts = [tags.wur_gradient(v) for v in variables], [tags.wur_noise(v) for v in variables]
    stddev = [tags.WUR_ALL_STDDEV]
    charts = {
        "Updates": [
            _chart("Weight-update ratio of every variable, healthy band (press log)",
                   [*ratios, *band]),
            _chart("All variables as one, healthy band", [tags.WUR_ALL_RATIO, *band]),
            _chart("Gradient part", [*parts[0], *band]),
            _chart("Noise part", [*parts[1], *band]),
        ],
        "Noise": [
            _chart("Loss", [tags.LOSS]),
            _chart("Chosen stddev", [tags.NOISE_STDDEV]),
            _chart("Chosen stddev on summary steps", stddev),
        ],
    }  # fmt: skip
    proto = layout_pb2.Layout(
        category=[layout_pb2.Category(title=t, chart=c) for t, c in charts.items()]
    )
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, string_val=[proto.SerializeToString()]
    )
    metadata = custom_scalar_metadata.create_summary_metadata()
    metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    return summary_pb2.Summary(
        value=[
            summary_pb2.Summary.Value(
                tag=custom_scalar_metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata
            )
        ]
    )


def _chart(title: str, names: Iterable[str]) -> layout_pb2.Chart:
    """A chart of exactly these tags: TensorBoard takes regular expressions, matched from the start.

    Slashes are what tags are made of, and nothing is escaped twice: only signs that mean something.
    """
    patterns = [_exactly(name) for name in names]
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=patterns))


def _exactly(name: str) -> str:
    special = r"\.^$*+?{}[]()|"
    return "".join("\\" + c if c in special else c for c in name) + "$"
