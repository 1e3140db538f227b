"""The record of a run, run.json: what it is, who owns it, and how it went.

`run.json` is written whole or not at all, and says which process owns the run, so that a dead
process can be told from a living one.

    >>> record = Record.create(run, argv=sys.argv, flags={'seed': 0}, extra={})
    >>> record.finish('completed', last_step=500, results={'validation/accuracy': 0.97})
    >>> status(read(rundir.find('logdir', 'base')))
    'completed'
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import socket
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
from etils import epath

from tracker import source
from tracker.rundir import RunDir

FORMAT = 1
STATUSES = ("running", "completed", "failed", "diverged", "interrupted")

_PACKAGES = (
    *("tf-tracker", "tensorflow", "keras", "tensorboard", "xprof", "numpy", "protobuf"),
    *("absl-py", "etils", "tensorflow-datasets", "nvidia-cudnn-cu12"),
)


class RunVanishedError(RuntimeError):
    """The run's directory was deleted, or replaced by another run, while the run was going on."""


class RecordError(ValueError):
    """A run.json that cannot be read: missing, not JSON, or from a newer version."""


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
        git, diff = source.state()
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


def amend(run: RunDir, **fields: Any) -> None:
    """Sets fields of a run that has ended; another process that is writing run.json is waited for.

    Args:
      run: the run.
      **fields: the fields with their new values.

    Raises:
      ValueError: if the run's process still lives.
      RecordError: if run.json cannot be read.
    """
    with _locked(run):
        current = read(run)
        if current["status"] == "running" and alive(current["owner"]):
            raise ValueError(f"The run {run.name} is still running.")
        _write(run, run.run_json, _encode({**current, **_plain(fields)}))


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
    """Writes a file whole or not at all, and on the disk before it returns.

    On a full disk there is no room for a second copy: what fits into the blocks that the
    file has is then written over it in one go.
    """
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
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not (getattr(error, "errno", None) == errno.ENOSPC and _overwritten(path, data)):
            raise


def _overwritten(path: epath.Path, data: bytes) -> bool:
    """Writes over a file if its blocks have room for the data."""
    try:
        with open(path, "r+b") as file:
            if len(data) > os.fstat(file.fileno()).st_blocks * 512:
                return False
            os.pwrite(file.fileno(), data, 0)
            os.ftruncate(file.fileno(), len(data))
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
