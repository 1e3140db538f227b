"""The run directory: builds its paths, names it, claims it, and finds it again.

One experiment is one directory under logdir, whatever happens to its processes. A directory is
claimed by making it, which one process alone can do. Nothing else builds a path inside a run;
what stands in its run.json is the business of `record`.

    >>> run = claim('logdir', 'baseline')
    >>> run.train
    PosixGPath('logdir/baseline/train')
    >>> find('logdir', 'base').name
    'baseline'
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
import unicodedata
from collections.abc import Iterator

from etils import epath

_BREAKING = ':\\?*<>|"'
_RESERVED = {"CON", "PRN", "AUX", "NUL"} | {f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10)}


class RunExistsError(ValueError):
    """The run's name is taken."""


@dataclasses.dataclass(frozen=True)
class RunDir:
    """The paths of one run; making one touches no disk.

    Attributes:
      path: the run's directory.
      logdir: the directory of all runs, an ancestor of path.
    """

    path: epath.Path
    logdir: epath.Path

    @property
    def name(self) -> str:
        """The run's name: its path below logdir, with `/` between the parts."""
        return self.path.relative_to(self.logdir).as_posix()

    @property
    def train(self) -> epath.Path:
        """Event files and captures of training."""
        return self.path / "train"

    @property
    def validation(self) -> epath.Path:
        """Event files of validation."""
        return self.path / "validation"

    @property
    def checkpoints(self) -> epath.Path:
        """What a resume starts from."""
        return self.path / "checkpoints"

    @property
    def orphaned(self) -> epath.Path:
        """What a resume trimmed from the event files."""
        return self.path / "orphaned"

    def workers(self, n: int) -> epath.Path:
        """Where worker n keeps its log; the chief is not a worker in this sense."""
        return self.path / "workers" / str(n)

    @property
    def run_json(self) -> epath.Path:
        """What the run is and how it went; see `Record`."""
        return self.path / "run.json"

    @property
    def flags_txt(self) -> epath.Path:
        """The flagfile that repeats the run."""
        return self.path / "flags.txt"

    @property
    def source_diff(self) -> epath.Path:
        """Changes of the code that git does not have."""
        return self.path / "source.diff"

    @property
    def console_log(self) -> epath.Path:
        """What the run said on the console."""
        return self.path / "console.log"

    @property
    def model_keras(self) -> epath.Path:
        """The trained model."""
        return self.path / "model.keras"


def check_name(name: str) -> None:
    r"""Checks that a run may have this name, by the same rules on every system.

    Allowed: spaces, `+`, `=`, `,`, quotes, any letters, and `/` for runs in folders; so 'a b',
    'lr=1e+3', 'Größe-模型' and 'x/y' are names as they stand. Refused rather than mapped to
    another name: '10:30' and the rest of `: \ ? * < > | "`, which break paths, URLs or the
    TensorBoard command line; '', '.', '..' and hidden names; 'CON' and its like; 300 characters.

    Args:
      name: the name, a path below logdir.

    Raises:
      ValueError: with one sentence, if the name is refused.
    """
    shown = name if len(name) <= 80 else name[:77] + "..."
    for part in name.split("/"):
        why = _fault(part)
        if why and name.startswith("/"):
            why = "is an absolute path, not a name below logdir"
        if why:
            raise ValueError(f"The run name {shown!r} {why}; choose another with --run.")


def _fault(part: str) -> str:
    bad = [c for c in part if c in _BREAKING]
    stem = part.partition(".")[0].upper()
    faults = {
        "is empty or has an empty part": not part,
        "has the part '.' or '..', which would leave its place in logdir": part in (".", ".."),
        "has a part that starts with '.', which tools hide": part.startswith("."),
        "has a part that starts with '-', which commands take for a flag": part.startswith("-"),
        "has a part that starts or ends with a space": part != part.strip(),
        "has a control or unencodable character": any(
            unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in part
        ),
        f"has the character {''.join(bad[:1])!r}, which breaks paths or tools": bool(bad),
        f"has the part {part[:20]!r}, which Windows reserves": stem in _RESERVED,
        "has a part longer than 255 bytes": len(part.encode("utf-8", "replace")) > 255,
    }
    return next((why for why, true in faults.items() if true), "")


def check_logdir(logdir: epath.PathLike) -> epath.Path:
    """Checks that runs can be made in a logdir, which need not exist; makes nothing.

    Args:
      logdir: the directory of all runs; a leading `~` is the home directory.

    Returns:
      The path, with `~` expanded.

    Raises:
      ValueError: with one sentence naming the path, if it or what it would be made in is a file
        or not writable, or if it is itself a run.
    """
    if not os.fspath(logdir):
        raise ValueError("--logdir is empty; name a directory for the runs.")
    if "\0" in os.fspath(logdir):
        raise ValueError(f"The logdir {os.fspath(logdir)!r} has a NUL character.")
    path = epath.Path(logdir).expanduser()
    if "://" in os.fspath(path):
        return path
    existing = next((p for p in (path, *path.parents) if os.path.lexists(p)), epath.Path("."))
    if not existing.is_dir():
        raise ValueError(f"The logdir {path} cannot be made: {existing} is not a directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"The logdir {path} is not writable: no permission in {existing}.")
    if (path / "run.json").exists():
        raise ValueError(f"The logdir {path} is itself a run; name the directory that holds it.")
    return path


def claim(
    logdir: epath.PathLike, name: str | None = None, default: str = "run", adopt: bool = False
) -> RunDir:
    """Makes the directory of a new run, for this process alone.

    Of several processes that claim the same name one gets it; without a name each gets its own.
    On object stores, which cannot make a directory exclusively, that holds only one after another.

    Args:
      logdir: the directory of all runs, made if missing; `~` is expanded.
      name: the run's name; None for `YYYYmmdd-HHMMSS-<default>`, with -2, -3, ... if taken.
      default: what an automatic name ends with.
      adopt: whether a directory that another tool has begun, with nothing in it but `train` and
        `validation` as Keras' TensorBoard callback makes them, can become the run.

    Returns:
      The claimed run; its directory exists and is empty, or adopted.

    Raises:
      RunExistsError: if the name is taken.
      ValueError: with one sentence, if the name or the logdir is refused. Nothing is left behind.
    """
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{default}"
    check_name(stamp if name is None else name)
    root = check_logdir(logdir)
    if name is not None:
        run = RunDir(root / name, root)
        if not _make(run) and not (adopt and _adopt(run)):
            raise RunExistsError(_taken(run))
        return run
    names = itertools.chain([stamp], (f"{stamp}-{n}" for n in itertools.count(2)))
    return next(run for run in (RunDir(root / n, root) for n in names) if _make(run))


def _taken(run: RunDir) -> str:
    if run.run_json.exists():
        return (
            f"The run {run.name} exists in {run.logdir}; continue it with --resume={run.name} "
            "or choose another name with --run."
        )
    return (
        f"The directory {run.path} exists but holds no run that --resume={run.name} could "
        "continue; choose another name with --run."
    )


def _adopt(run: RunDir) -> bool:
    """Takes a directory of event files as the run's; of two processes one gets it."""
    try:
        if {p.name for p in run.path.iterdir()} - {"train", "validation"}:
            return False
        with open(run.console_log, "x"):
            return True
    except OSError:
        return False


def _make(run: RunDir) -> bool:
    """Makes the run's directory; False if it is there; takes back made parents on failure."""
    parents = itertools.takewhile(lambda p: p != run.logdir, run.path.parents)
    for parent in parents:
        if (parent / "run.json").exists():
            outer = parent.relative_to(run.logdir).as_posix()
            raise ValueError(
                f"The run {run.name} would lie inside the run {outer}; choose another with --run."
            )
    missing = [p for p in run.path.parents if not p.exists()]
    try:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.path.mkdir()
    except OSError as error:
        if isinstance(error, FileExistsError) and os.path.lexists(run.path):
            return False
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        reason = error.strerror or str(error)
        raise ValueError(f"The run directory {run.path} cannot be made: {reason}.") from error
    return True


def runs(logdir: epath.PathLike) -> list[RunDir]:
    """All runs below a logdir, in order of their names.

    A run is a directory with a run.json. Links to runs count; other linked directories are not
    followed, so that loops end; hidden directories are not entered.

    Args:
      logdir: the directory of all runs.

    Returns:
      The runs; none if the logdir does not exist. Directories that vanish meanwhile are left out.
    """
    root = epath.Path(logdir).expanduser()
    return sorted(_runs_below(root, root), key=lambda run: run.name)


def _runs_below(directory: epath.Path, root: epath.Path) -> Iterator[RunDir]:
    try:
        children = list(directory.iterdir()) if directory.is_dir() else []
    except OSError:
        return
    for child in children:
        if child.name.startswith(".") or not child.is_dir():
            continue
        if (child / "run.json").exists():
            yield RunDir(child, root)
        elif not os.path.islink(child):
            yield from _runs_below(child, root)


def find(logdir: epath.PathLike, name: str) -> RunDir:
    """Finds one run by what a person types.

    Args:
      logdir: the directory of all runs.
      name: a run's name, the beginning of one name only, or 'latest' for the newest run. A run
        whose whole name it is comes first.

    Returns:
      The run.

    Raises:
      ValueError: with one sentence, if there is none or more than one.
    """
    known = runs(logdir)
    if not known:
        raise ValueError(f"There is no run in {logdir}.")
    exact = [run for run in known if run.name == name]
    if exact:
        return exact[0]
    if name == "latest":
        return max(known, key=_created)
    matches = [run for run in known if name and run.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(run.name for run in (matches or known)[:10])
    more = f", and {len(matches or known) - 10} more" if len(matches or known) > 10 else ""
    if matches:
        raise ValueError(f"{name!r} begins the names of several runs: {shown}{more}.")
    raise ValueError(f"There is no run {name!r} in {logdir}; there are {shown}{more}.")


def _created(run: RunDir) -> str:
    try:
        return str(json.loads(run.run_json.read_bytes())["created"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
