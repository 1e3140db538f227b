"""The weight-update ratio (WUR): how far one update moves each variable, relative to its size.

For one variable in one step, WUR = ‖after − before‖₂ / ‖before‖₂. About 1e-3 is healthy (CS231n,
"Neural Networks Part 3", ratio of weights to updates); outside 1e-4 to 1e-2 the learning rate is
usually too small or too large. `measure` runs inside a compiled step and returns a few numbers for
each variable; `ratios` divides them on the host, in float64, so that nothing is divided twice and
what has no ratio says so.

    >>> import numpy as np
    >>> before, after = np.float32([3, 4]), np.float32([3, 4.005])
    >>> m = Measured.from_rows(measure([before], [after], [after], [None]).numpy())
    >>> round(float(ratios(m).total[0]), 6)
    0.001
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracker import tags

if TYPE_CHECKING:
    import tensorflow as tf


_SAFE = (1e-25, 1e30)  # sums of squares that float32 holds well
_SMALL = 2**12  # elements; variables of at most so many are measured together
_MANY = 64  # of them, from which that pays


class Measured(NamedTuple):
    """What one instrumented step measures: a float64 [variables] array for each field.

    Norms are in units of the weights, counts in elements. "Touched" is about the rows that a sparse
    gradient names (embeddings); for variables with a dense gradient these fields are NaN.
    """

    before: Any  # ‖before‖₂
    after: Any  # ‖after‖₂
    update: Any  # ‖after − before‖₂
    gradient: Any  # ‖mid − before‖₂, mid being the weights between update rule and noise
    noise: Any  # ‖after − mid‖₂
    size: Any  # number of elements
    with_gradient: Any  # elements whose gradient is not zero
    swallowed: Any  # of these, the ones that the update rule left bit-identical
    noised: Any  # elements that were to get noise
    noise_swallowed: Any  # of these, the ones that the noise left bit-identical
    nonfinite: Any  # elements of `after` that are NaN or infinite
    touched_before: Any  # ‖before‖₂ over the touched rows
    touched_update: Any  # ‖after − before‖₂ over the touched rows
    touched_rows: Any  # number of touched rows
    proposed: Any  # ‖proposal − before‖₂ of a rule that judges its steps; NaN for others

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> Measured:
        """From a float64 [variables, fields] array, as `measure` returns it."""
        return cls(*np.asarray(rows, np.float64).T)


class Ratios(NamedTuple):
    """Ratios of one step, each a float64 [variables] array; NaN where there is none."""

    total: np.ndarray
    gradient: np.ndarray
    noise: np.ndarray
    norm_change: np.ndarray
    touched: np.ndarray
    proposed: np.ndarray
    undefined: np.ndarray  # bool: before was zero and the update changed it


@dataclasses.dataclass(frozen=True)
class Overall:
    """The compact view: all variables of one step in a few numbers."""

    ratio: float  # of all variables as one vector; NaN if undefined
    log10: np.ndarray  # log10 of the non-zero, finite ratios
    out_of_band: int
    undefined: int
    unchanged_fraction: float  # NaN if no element has a gradient
    unchanged_by_noise: float  # NaN if no noise was added
    worst: tuple[int, ...]  # indices, furthest from 1e-3 first


def norm(x: tf.Tensor) -> tf.Tensor:
    """‖x‖₂ as a float64 scalar, without overflow or underflow of the squares.

    The sum of squares is taken of x / max|x| in float32 (or wider), so that weights of 1e-25 and of
    3e20 have a norm; it is 0 only if every element is (or denormal, which TensorFlow flushes to 0),
    and NaN if any element is not finite.
    """
    import tensorflow as tf

    if x.dtype not in (tf.float32, tf.float64):
        x = tf.cast(x, tf.float32)
    largest = tf.reduce_max(tf.abs(x)) if x.shape.num_elements() != 0 else tf.zeros([], x.dtype)
    divisor = tf.where(largest > 0, largest, tf.ones_like(largest))
    squares = tf.reduce_sum(tf.square(x / divisor))
    return tf.cast(largest, tf.float64) * tf.sqrt(tf.cast(squares, tf.float64))


def measure(
    before, middle, after, gradients, noised=None, relative=False, proposed=None, touched=False
) -> tf.Tensor:
    """Measures one step, inside the graph.

    Args:
      before, middle, after: each variable before the step, between update rule and noise, and after
        the step; lists of tensors of equal shapes. `middle[i] is after[i]` says that no noise was
        added to i.
      gradients: for each variable its gradient (a tensor, an IndexedSlices, or None).
      noised: scalar bool tensor, whether the noise of the step was other than zero (default: yes).
      relative: whether noise scales with the variable, so that one of zeros gets none.
      touched: whether of variables with a sparse gradient only its rows got noise.
      proposed: each variable as a step proposed it that may have been taken back since; None where
        steps are not judged.

    Returns:
      float64 [variables, fields of `Measured`], one tensor so that it costs one transfer.
    """
    import tensorflow as tf

    if not before:
        return tf.zeros([0, len(Measured._fields)], tf.float64)
    noised = tf.constant(True) if noised is None else noised
    groups = _groups(before, gradients)
    rows = []
    ways: tuple[Any, Any] = (_apart, _together)
    for group, measured in zip(groups, ways, strict=True):
        if group:
            values = [[v[i] for i in group] for v in (before, middle, after, gradients)]
            proposals = None if proposed is None else [proposed[i] for i in group]
            rows.append(measured(*values, noised, relative, proposals, touched))
    if len(rows) == 1:
        return rows[0]
    return tf.gather(tf.concat(rows, 0), np.argsort(groups[0] + groups[1]))


def _groups(before, gradients) -> tuple[list[int], list[int]]:
    """Which variables are measured one by one, and which together: small ones if there are many."""
    import tensorflow as tf

    small = [
        i
        for i, (b, g) in enumerate(zip(before, gradients, strict=True))
        if np.prod(b.shape) <= _SMALL
        and tf.as_dtype(b.dtype) != tf.float64
        and not isinstance(g, tf.IndexedSlices)
    ]
    if len(small) < _MANY:
        small = []
    return sorted(set(range(len(before))) - set(small)), small


def _together(before, middle, after, gradients, noised, relative, proposed, touched):
    """Rows of many small variables, as one vector whose segments they are.

    One by one each costs some hundred ops, which take longer than what they compute. In float64 no
    square of a float32 number overflows or underflows.
    """
    import tensorflow as tf

    sizes = [int(np.prod(b.shape)) for b in before]
    segments = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def vector(values):
        flat = [tf.reshape(tf.cast(v, tf.float32), [-1]) for v in values]
        return tf.cast(tf.concat(flat, 0), tf.float64)

    def total(x):
        return tf.math.unsorted_segment_sum(tf.cast(x, tf.float64), segments, len(sizes))

    def size(x):
        return tf.sqrt(total(tf.square(x)))

    old, mid, new = vector(before), vector(middle), vector(after)
    moved = vector([tf.zeros_like(b) if g is None else g
                    for b, g in zip(before, gradients, strict=True)])  # fmt: skip
    moved = tf.not_equal(moved, 0)
    norms = [size(x) for x in (old, new, new - old, mid - old, new - mid)]
    loud = [0.0 if m is a or proposed is not None else 1.0
            for m, a in zip(middle, after, strict=True)]  # fmt: skip
    some = tf.constant(loud, tf.float64) * tf.cast(noised, tf.float64)
    if relative:
        some *= tf.cast(norms[0] > 0, tf.float64)
    counts = [
        tf.constant(sizes, tf.float64),
        total(moved),
        total(moved & tf.equal(old, mid)),
        some * sizes,
        some * total(tf.equal(mid, new)),
        total(~tf.math.is_finite(new)),
    ]
    nothing = tf.fill([len(sizes)], tf.constant(np.nan, tf.float64))
    proposal = nothing if proposed is None else size(vector(proposed) - old)
    return tf.stack([*norms, *counts, nothing, nothing, nothing, proposal], axis=1)


def _apart(before, middle, after, gradients, noised, relative, proposed, touched):
    """Rows of variables, each measured on its own."""
    import tensorflow as tf

    triples = [
        _Triple(_wide(b), _wide(m), _wide(a), m is a)
        for b, m, a in zip(before, middle, after, strict=True)
    ]
    norms, nonfinite = _norms(triples, noised)
    rows = []
    for i, (b, m, a, g) in enumerate(zip(before, middle, after, gradients, strict=True)):
        size = tf.constant(float(np.prod(b.shape)), tf.float64)
        some = tf.logical_and(noised, norms[i, 0] > 0) if relative else noised
        zero = tf.zeros([], tf.float64)
        noise = (zero, zero)
        if m is not a:
            noise = tf.where(some, size, zero), tf.where(some, _count(tf.equal(a, m)), zero)
        proposal = tf.constant(np.nan, tf.float64)
        if proposed is not None:
            proposal = norm(_wide(proposed[i]) - triples[i].old)
        if proposed is not None or (touched and isinstance(g, tf.IndexedSlices)):
            noise = (zero, zero)  # what was taken back, or got none, was not swallowed
        by_rows = _touched(triples[i].old, triples[i].new, g)
        counts = [size, *_swallowed(b, m, g), *noise, nonfinite[i]]
        rows.append(tf.stack([*counts, *by_rows, proposal]))
    return tf.concat([norms, tf.stack(rows)], axis=1)


class _Triple(NamedTuple):
    """A variable before the step, between update rule and noise, and after it; float32 or wider."""

    old: Any
    mid: Any
    new: Any
    quiet: bool  # no noise was added: mid is new

    def parts(self) -> list[Any]:
        """What norms are taken of, in the order of the first fields of `Measured`."""
        update = self.new - self.old
        if self.quiet:
            return [self.old, self.new, update, update, None]
        return [self.old, self.new, update, self.mid - self.old, self.new - self.mid]


def _wide(x):
    import tensorflow as tf

    x = tf.convert_to_tensor(x)
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _norms(triples, noised):
    """Norms, float64 [variables, 5], and counts of non-finite elements, float64 [variables].

    Squares are summed in one pass over each array. Only if a sum is so small, large or strange that
    squares could have underflowed or overflowed are all norms taken the careful way.
    """
    import tensorflow as tf

    zero = tf.zeros([], tf.float64)

    def sums(parts):
        return [zero if x is None else tf.cast(2 * tf.nn.l2_loss(x), tf.float64) for x in parts]

    squares = tf.stack([tf.stack(sums(t.parts())) for t in triples])
    silent = tf.stack([[False] * 4 + [True]] * len(triples))
    known = tf.logical_and(silent, tf.logical_or(tf.equal(squares, 0), tf.logical_not(noised)))
    empty = tf.constant([[0 in t.old.shape] * 5 for t in triples])
    fine = known | empty | ((squares > _SAFE[0]) & (squares < _SAFE[1]))

    def careful():
        rows = [tf.stack([zero if x is None else norm(x) for x in t.parts()]) for t in triples]
        bad = [_count(tf.logical_not(tf.math.is_finite(t.new))) for t in triples]
        return tf.stack(rows), tf.stack(bad)

    return tf.cond(
        tf.reduce_all(fine),
        lambda: (tf.sqrt(squares), tf.zeros([len(triples)], tf.float64)),
        careful,
    )


def _count(condition):
    import tensorflow as tf

    return tf.cast(tf.reduce_sum(tf.cast(condition, tf.int32)), tf.float64)


def _swallowed(before, middle, gradient):
    import tensorflow as tf

    zero = tf.constant(0, tf.float64)
    if gradient is None:
        return zero, zero
    if isinstance(gradient, tf.IndexedSlices):
        rows, where = tf.unique(tf.reshape(gradient.indices, [-1]))
        gradient = tf.math.unsorted_segment_sum(gradient.values, where, tf.size(rows))
        before, middle = tf.gather(before, rows), tf.gather(middle, rows)
    moved = tf.not_equal(gradient, tf.zeros([], gradient.dtype))
    return _count(moved), _count(tf.logical_and(moved, tf.equal(before, middle)))


def _touched(old, new, gradient):
    import tensorflow as tf

    if not isinstance(gradient, tf.IndexedSlices):
        nan = tf.constant(np.nan, tf.float64)
        return nan, nan, nan
    rows, _ = tf.unique(tf.reshape(gradient.indices, [-1]))
    kept = tf.gather(old, rows)
    return norm(kept), norm(tf.gather(new, rows) - kept), tf.cast(tf.size(rows), tf.float64)


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 / 0 is 0 (nothing there, nothing moved), x / 0 and what is not finite NaN."""
    defined = np.isfinite(part) & np.isfinite(whole) & (whole > 0)
    result = np.where((part == 0) & (whole == 0), 0.0, np.nan)
    return np.divide(part, whole, out=result, where=defined)


def ratios(measured: Measured) -> Ratios:
    """Divides: the ratios of every variable, NaN where there is none.

    A variable that was all zeros has ratio 0 if it still is, and none if the update changed it.
    A NaN or infinity among the weights leaves no ratio either, and is counted by `nonfinite`; nor
    has a variable without elements.
    """
    before = np.where(measured.size > 0, measured.before, np.nan)
    total = _divide(measured.update, before)
    return Ratios(
        total,
        _divide(measured.gradient, before),
        _divide(measured.noise, before),
        _divide(np.abs(measured.after - before), before),
        _divide(measured.touched_update, measured.touched_before),
        _divide(measured.proposed, before),
        (before == 0) & (measured.update > 0),
    )


def overall(measured: Measured, worst: int = 5) -> Overall:
    """All variables in a few numbers.

    Args:
      measured: one step.
      worst: how many of the variables furthest from 1e-3 (in log10) to name; a ratio of 0 is the
        furthest of all.
    """
    ratio = ratios(measured)
    finite = ratio.total[np.isfinite(ratio.total)]
    outside = (finite < tags.HEALTHY_LOW) | (finite > tags.HEALTHY_HIGH)
    with np.errstate(divide="ignore"):
        distance = np.abs(np.log10(ratio.total) + 3)
    order = np.argsort(-np.nan_to_num(distance, nan=-1.0, posinf=np.inf), kind="stable")
    known = [int(i) for i in order if np.isfinite(ratio.total[i])]
    whole = _divide(np.sqrt(np.sum(measured.update**2)), np.sqrt(np.sum(measured.before**2)))
    return Overall(
        ratio=float(whole),
        log10=np.log10(finite[finite > 0]),
        out_of_band=int(outside.sum()),
        undefined=int(ratio.undefined.sum()),
        unchanged_fraction=_share(measured.swallowed, measured.with_gradient),
        unchanged_by_noise=_share(measured.noise_swallowed, measured.noised),
        worst=tuple(known[:worst]),
    )


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else float("nan")
