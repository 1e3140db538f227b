"""The run directory: builds its paths, claims it, and keeps run.json truthful.

One experiment is one directory under logdir, whatever happens to its processes. A directory is
claimed by making it, which one process alone can do, and `run.json` says who owns it, so that a
dead process can be told from a living one. Nothing else builds a path inside a run.

    >>> run = claim('logdir', 'baseline')
    >>> record = Record.create(run, argv=sys.argv, flags={'seed': 0}, extra={})
    >>> record.finish('completed', last_step=500, results={'validation/accuracy': 0.97})
    >>> status(read(find('logdir', 'base')))
    'completed'
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import importlib.metadata
import itertools
import json
import math
import os
import platform
import socket
import subprocess
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
from etils import epath

FORMAT = 1
STATUSES = ("running", "completed", "failed", "diverged", "interrupted")
DIFF_BYTES = 10 * 10**6
GIT_SECONDS = 10.0

_PACKAGES = (
    *("tf-tracker", "tensorflow", "keras", "tensorboard", "xprof", "numpy", "protobuf"),
    *("absl-py", "etils", "tensorflow-datasets", "nvidia-cudnn-cu12"),
)
_BREAKING = ':\\?*<>|"'
_RESERVED = {"CON", "PRN", "AUX", "NUL"} | {f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10)}


class RunExistsError(ValueError):
    """The run's name is taken."""


class RunVanishedError(RuntimeError):
    """The run's directory was deleted, or replaced by another run, while the run was going on."""


class RecordError(ValueError):
    """A run.json that cannot be read: missing, not JSON, or from a newer version."""


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


def claim(logdir: epath.PathLike, name: str | None = None, default: str = "run") -> RunDir:
    """Makes the directory of a new run, for this process alone.

    Of several processes that claim the same name one gets it; without a name each gets its own.
    On object stores, which cannot make a directory exclusively, that holds only one after another.

    Args:
      logdir: the directory of all runs, made if missing; `~` is expanded.
      name: the run's name; None for `YYYYmmdd-HHMMSS-<default>`, with -2, -3, ... if taken.
      default: what an automatic name ends with.

    Returns:
      The claimed run; its directory exists and is empty.

    Raises:
      RunExistsError: if the name is taken.
      ValueError: with one sentence, if the name or the logdir is refused. Nothing is left behind.
    """
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{default}"
    check_name(stamp if name is None else name)
    root = check_logdir(logdir)
    if name is not None:
        run = RunDir(root / name, root)
        if not _make(run):
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
        return str(read(run).get("created", ""))
    except RecordError:
        return ""


def read(run: RunDir) -> dict[str, Any]:
    """The content of a run's run.json.

    Args:
      run: the run.

    Returns:
      The fields that `Record` lists; 'status' as recorded (see `status` for the true one).

    Raises:
      RecordError: with one sentence, if it is missing, unreadable, not a JSON object, or written
        by a newer version.
    """
    try:
        fields = json.loads(run.run_json.read_bytes())
    except FileNotFoundError as error:
        raise RecordError(f"{run.path} is not a run: it has no run.json.") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"{run.run_json} cannot be read: {error}.") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise RecordError(f"{run.run_json} is not the record of a run.")
    if fields["format"] > FORMAT:
        raise RecordError(
            f"{run.run_json} was written by a newer version of tracker (format "
            f"{fields['format']}, this one reads {FORMAT}); update tracker."
        )
    if missing := [key for key in ("created", "status", "owner", "attempts") if key not in fields]:
        raise RecordError(f"{run.run_json} lacks {', '.join(missing)}.")
    return fields


class Record:
    """The run.json of a run that is going on: written whole, or not at all.

    Fields: format; name; created (ISO 8601, UTC); argv; flags; status, one of `STATUSES`;
    attempts, a list of {started, ended, status, first_step, last_step, owner}; git, null or
    {commit, branch, dirty, diff}; host; platform; python; packages {name: version}; owner {host,
    boot_id, pid, start_time}; results; and what `create` got as extra. NaN and infinities are
    written as the strings NaN, Infinity and -Infinity, which JSON lacks as numbers.

    Attributes:
      run: the run.
      fields: what was last written.
    """

    def __init__(self, run: RunDir, fields: dict[str, Any]):
        self.run = run
        self.fields = fields

    @classmethod
    def create(
        cls, run: RunDir, argv: Sequence[str], flags: dict[str, Any], extra: dict[str, Any]
    ) -> Record:
        """Writes the first run.json of a claimed run, and source.diff if there is one.

        Args:
          run: a claimed run.
          argv: the command line.
          flags: the value of each flag.
          extra: further fields; none of those above.

        Returns:
          The record, with status 'running' and this process as its owner.

        Raises:
          ValueError: if extra has a field that is set here.
          RunVanishedError: if the directory is gone.
        """
        git, diff = _git_state()
        fields = {
            "format": FORMAT,
            "name": run.name,
            "created": _now(),
            "argv": list(argv),
            "flags": flags,
            "status": "running",
            "attempts": [_attempt(first_step=1)],
            "git": git,
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "packages": _packages(),
            "owner": owner(),
            "results": {},
        }
        if twice := sorted(fields.keys() & extra.keys()):
            raise ValueError(f"The record of a run sets {', '.join(twice)} itself.")
        record = cls(run, _plain({**fields, **extra}))
        if diff:
            _write(run, run.source_diff, diff)
        _write(run, run.run_json, _encode(record.fields))
        return record

    @classmethod
    def resume(cls, run: RunDir, first_step: int) -> Record:
        """Makes this process the owner of a run that has ended, or whose process died.

        Args:
          run: the run.
          first_step: the first step of the new attempt.

        Returns:
          The record, with a new attempt.

        Raises:
          ValueError: if the run's process still lives; of two that resume at once one gets it.
          RecordError: if run.json cannot be read.
        """
        with _locked(run):
            fields = read(run)
            if fields.get("status") == "running" and alive(fields["owner"]):
                who = fields["owner"]
                raise ValueError(
                    f"The run {run.name} is still running, as process {who['pid']} on "
                    f"{who['host']}; stop that first."
                )
            for attempt in fields["attempts"]:
                if attempt["status"] == "running":
                    attempt["status"] = "stale"
            attempts = [*fields["attempts"], _attempt(first_step)]
            fields.update(status="running", owner=owner(), attempts=attempts)
            _write(run, run.run_json, _encode(fields))
        return cls(run, fields)

    def update(self, **fields: Any) -> None:
        """Sets fields and rewrites run.json; fields that others added meanwhile stay.

        Args:
          **fields: the fields with their new values.

        Raises:
          RunVanishedError: if the run's directory is gone or now another run's.
        """
        with _locked(self.run):
            try:
                current = read(self.run)
            except RecordError as error:
                if self.run.run_json.exists():
                    current = self.fields  # damaged from outside: ours is the better copy
                else:
                    raise _vanished(self.run) from error
            if (current["created"], current["owner"]) != tuple(
                self.fields[key] for key in ("created", "owner")
            ):
                raise RunVanishedError(
                    f"The run {self.run.name} was taken over by another process; stopping here."
                )
            self.fields = {**current, **_plain(fields)}
            _write(self.run, self.run.run_json, _encode(self.fields))

    def finish(self, status: str, last_step: int | None = None, **fields: Any) -> None:
        """Records how the run, and its last attempt, ended.

        Args:
          status: one of `STATUSES` but 'running'.
          last_step: the last step that was made.
          **fields: further fields, as for `update`.

        Raises:
          ValueError: if there is no such status.
          RunVanishedError: as for `update`.
        """
        if status not in STATUSES[1:]:
            raise ValueError(f"A run ends as one of {', '.join(STATUSES[1:])}, not as {status!r}.")
        *before, last = self.fields["attempts"]
        last = {**last, "ended": _now(), "status": status, "last_step": last_step}
        self.update(status=status, attempts=[*before, last], **fields)


def owner() -> dict[str, Any]:
    """What identifies this process: {host, boot_id, pid, start_time (seconds after boot)}."""
    process = psutil.Process()
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "pid": process.pid,
        "start_time": _start_time(process),
    }


def alive(owner: dict[str, Any]) -> bool | None:
    """Whether the process that owns a run is still there.

    Args:
      owner: the field of that name of a run.json.

    Returns:
      True or False; None if it ran on another host, where this one cannot look. A process of the
      same number that started at another time, or before a reboot, is another process.
    """
    if owner["host"] != socket.gethostname():
        return None
    if owner["boot_id"] != _boot_id():
        return False
    try:
        process = psutil.Process(owner["pid"])
        started = _start_time(process)
        return process.status() != psutil.STATUS_ZOMBIE and abs(started - owner["start_time"]) < 1.5
    except psutil.NoSuchProcess:
        return False


def status(record: dict[str, Any]) -> str:
    """The true status of a run: as recorded, but 'stale' if its process died without a word.

    Args:
      record: the content of a run.json.

    Returns:
      One of `STATUSES`, or 'stale'.
    """
    if record["status"] == "running" and alive(record["owner"]) is False:
        return "stale"
    return str(record["status"])


def _start_time(process: psutil.Process) -> float:
    # Seconds after boot: the time of day of a start moves when the clock is set.
    return round(process.create_time() - psutil.boot_time(), 2)


def _boot_id() -> str:
    try:
        return epath.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _attempt(first_step: int) -> dict[str, Any]:
    return {
        "started": _now(),
        "ended": None,
        "status": "running",
        "first_step": first_step,
        "last_step": None,
        "owner": owner(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")


def _packages() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _encode(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # What is not UTF-8 on a command line arrives as lone surrogates; \udc80 is JSON's own escape.
    return text.encode("utf-8", "backslashreplace")


def _vanished(run: RunDir) -> RunVanishedError:
    return RunVanishedError(f"The directory of the run {run.name}, {run.path}, was deleted.")


@contextlib.contextmanager
def _locked(run: RunDir) -> Iterator[None]:
    """Holds other writers of run.json off; remote file systems, which cannot lock, do not."""
    if "://" in os.fspath(run.path):
        yield
        return
    try:
        directory = os.open(run.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise _vanished(run) from error
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(run: RunDir, path: epath.Path, data: bytes) -> None:
    """Writes a file whole or not at all, and on the disk before it returns."""
    if "://" in os.fspath(path):
        path.write_bytes(data)  # object stores show a file when it is complete
        return
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    except FileNotFoundError as error:
        raise _vanished(run) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except FileNotFoundError as error:
        raise _vanished(run) from error
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _git_state() -> tuple[dict[str, Any] | None, bytes]:
    """The repository that the current directory is in, and the text of its source.diff."""
    deadline = time.monotonic() + GIT_SECONDS
    commit = _git(deadline, "rev-parse", "--verify", "HEAD")
    if commit is None and _git(deadline, "rev-parse", "--git-dir") is None:
        return None, b""
    branch = _git(deadline, "symbolic-ref", "--short", "-q", "HEAD")
    diff = _git(deadline, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    listing = "ls-files --others --exclude-standard --directory --no-empty-directory --full-name -z"
    untracked = _git(deadline, *listing.split(), "--", ":/") or b""
    names = b"".join(b"# untracked: %s\n" % name for name in untracked.split(b"\0") if name)
    text = names[:DIFF_BYTES] + (diff or b"")
    if len(text) > DIFF_BYTES:
        text = text[:DIFF_BYTES] + b"\n# cut at %d bytes; the rest is not kept\n" % DIFF_BYTES
    state = {
        "commit": None if commit is None else commit.decode().strip(),
        "branch": None if branch is None else branch.decode("utf-8", "replace").strip(),
        "dirty": None if diff is None else bool(diff),
        "diff": "source.diff" if text else None,
    }
    return state, text


def _git(deadline: float, *arguments: str) -> bytes | None:
    """What a git command prints, at most a little past the bound; None if it fails or hangs."""
    seconds = deadline - time.monotonic()
    with tempfile.TemporaryFile() as output:  # a diff may be larger than memory
        try:
            subprocess.run(
                ["git", "-c", "color.ui=false", "-c", "core.quotePath=false", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=max(seconds, 0.01),
                check=True,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        return output.read(DIFF_BYTES + 1)
