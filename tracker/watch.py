"""What a run warns about while it goes on, each thing once.

>>> watch = Watch(console.warn)
>>> watch.measured(recorder.measured, names, noised, relative=False)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tracker import wur

MOST_SWALLOWED = 0.5  # share of elements left bit-identical, above which training is not training
MANY_SKIPPED = 10


class Watch:
    """Warns of what people would want to know before the run ends.

    Args:
      warn: called with one sentence.
    """

    def __init__(self, warn: Callable[[str], None]):
        self._warn = warn
        self._done: set[str] = set()

    def once(self, what: str, sentence: str) -> None:
        """Warns, unless it has warned of the same thing before."""
        if what not in self._done:
            self._done.add(what)
            self._warn(sentence)

    def said(self, sentence: str) -> None:
        """Passes on what a writer says of its file; two that say the same are heard once."""
        self.once(sentence.split(maxsplit=1)[0], sentence)

    def skipped(self, batches: int) -> None:
        """Warns if so many batches in a row, beyond those of accumulation, made no update."""
        if batches >= MANY_SKIPPED:
            self.once("skipped", f"{MANY_SKIPPED} batches or more in a row made no update.")

    def measured(
        self,
        measured: wur.Measured | None,
        names: Sequence[str],
        noised: Collection[str],
        relative: bool,
    ) -> None:
        """Looks at a summary step.

        Args:
          measured: the step; None before there is one.
          names: of the measured variables.
          noised: names of the variables that get noise.
          relative: whether the noise scales with each variable.
        """
        if measured is None:
            return
        share = measured.swallowed.sum() / max(measured.with_gradient.sum(), 1)
        if share > MOST_SWALLOWED:
            self.once(
                "swallowed",
                f"{share:.0%} of the weights that have a gradient are left bit-identical by the "
                "update: it is too small for their precision. Train in float32 or a mixed_ "
                "precision, or raise the learning rate; for Adam in bfloat16 also lower beta_2.",
            )
        sizes = zip(names, measured.before, strict=True)
        zero = [name for name, size in sizes if size == 0 and name in noised]
        if relative and zero:
            more = " and others" if len(zero) > 5 else ""
            self.once(
                "zero",
                "Relative noise leaves variables of zeros as they are: "
                f"{', '.join(zero[:5])}{more}.",
            )
