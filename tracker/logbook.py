"""What users log themselves, beside the diagnostics: scalars, text, histograms, images.

    >>> book = Logbook(writer, now=lambda: 7)
    >>> book.log(None, {'my/score': 0.5, 'my/note': 'warmer now', 'my/weights': array})
    >>> book.log(8, {'my/picture': Image(pixels)})

While a run goes on, `log` writes into it from anywhere in the process: from a model's own code, a
callback, a function called by a training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tracker import summaries, tags


class Image(NamedTuple):
    """Pixels to log as a picture.

    Attributes:
      pixels: [height, width, channels] or [number, height, width, channels] with 1, 3 or 4
        channels; uint8, or float from 0 to 1.
    """

    pixels: Any


class Logbook:
    """Writes what a user logs into one directory's events.

    Args:
      writer: of the directory.
      now: the step that the run is at.
    """

    def __init__(self, writer: summaries.EventWriter, now: Callable[[], int]):
        self._writer = writer
        self._now = now

    def log(self, step: Any, values: Mapping[str, Any]) -> None:
        """Adds values of one step; they are on disk when this returns.

        Args:
          step: an integer of any kind (a tensor or a variable too), 0 or more; None for the step
            that the run is at.
          values: by tag. A number is a scalar, a string is text (Markdown), an array is a
            histogram, an `Image` is a picture.

        Raises:
          ValueError: in one sentence that names the tag: a step that is not such a number, a tag
            that tracker writes itself, a value that is none of these. Nothing is written then.
        """
        if not values:
            return
        number = self._now() if step is None else _step(step, next(iter(values)))
        scalars = {t: float(_array(t, v)) for t, v in values.items() if _is_scalar(t, v)}
        others = [_summary(t, v) for t, v in values.items() if t not in scalars]
        for tag in values:
            if tags.is_own(tag):
                raise ValueError(f"The tag {tag} is one that tracker writes; choose another.")
        if scalars:
            self._writer.scalars(number, scalars)
        for summary in others:
            self._writer.summary(number, summary)
        self._writer.flush()


_open: list[Logbook] = []  # of the runs that go on, the newest last


def opened(book: Logbook) -> None:
    """Makes a logbook the one that `log` writes to."""
    _open.append(book)


def closed(book: Logbook) -> None:
    """Ends that."""
    if book in _open:
        _open.remove(book)


def log(step: Any, values: Mapping[str, Any]) -> None:
    """Logs into the run that goes on in this process; see `Logbook.log`.

    Where none goes on nothing happens, so that a model that logs can be built and used anywhere.
    """
    if _open:
        _open[-1].log(step, values)


def _step(step: Any, tag: str) -> int:
    try:
        array = np.asarray(step.numpy() if hasattr(step, "numpy") else step)
    except (TypeError, ValueError, NotImplementedError):
        array = np.asarray(None)
    if array.dtype.kind not in "iu" or array.ndim or array < 0 or array >= 2**63:
        raise ValueError(
            f"The step of {tag} is {step!r}; should be an integer from 0, or None for the step "
            "that the run is at."
        )
    return int(array)


def _array(tag: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"The value of {tag} is not known while a function is compiled; return it from the "
            "function, and log it outside."
        ) from error


def _is_scalar(tag: str, value: Any) -> bool:
    if isinstance(value, str | Image):
        return False
    array = _array(tag, value)
    return not array.ndim and array.dtype.kind in "biuf"


def _summary(tag: str, value: Any) -> Any:
    if isinstance(value, str):
        return summaries.text(tag, value)
    if isinstance(value, Image):
        return summaries.image(tag, _pixels(tag, value))
    array = _array(tag, value)
    if array.dtype.kind not in "biuf":
        kind = type(value).__name__
        raise ValueError(
            f"The value of {tag} is of the type {kind}; should be a number, a string, an array of "
            "numbers, or an Image."
        )
    return summaries.histogram(tag, array)


def _pixels(tag: str, image: Image) -> np.ndarray:
    pixels = _array(tag, image.pixels)
    pixels = pixels[np.newaxis] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3, 4):
        raise ValueError(
            f"The image {tag} has the shape {list(np.shape(image.pixels))}; should be [height, "
            "width, channels] with 1, 3 or 4 channels, or several of these."
        )
    if pixels.dtype == np.uint8:
        return pixels
    return np.round(255 * np.clip(np.nan_to_num(pixels.astype(np.float64)), 0, 1)).astype(np.uint8)
