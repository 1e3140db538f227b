"""The workers of a run on several machines: who they are, and whether they are there.

TensorFlow's own convention says it: the environment variable TF_CONFIG, the same JSON on every
machine but for the task. The chief is the task of the type chief, else worker 0. Nothing here
imports TensorFlow, so that a mistake is found before anything is started.

    >>> os.environ['TF_CONFIG'] = json.dumps({
    ...     'cluster': {'worker': ['10.0.0.1:12345', '10.0.0.2:12345']},
    ...     'task': {'type': 'worker', 'index': 1}})
    >>> read().chief
    False
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_SHAPE = (
    'should be like {"cluster": {"worker": ["host0:port", "host1:port"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class Cluster(NamedTuple):
    """The workers of a run.

    Attributes:
      addresses: 'host:port' of each, the chief first.
      number: which of them this process is.
      jobs: how many tasks there are of each type.
    """

    addresses: tuple[str, ...]
    number: int
    jobs: dict[str, int]

    @property
    def chief(self) -> bool:
        """Whether this process is the one that writes."""
        return self.number == 0


def read(text: str | None = None) -> Cluster:
    """What TF_CONFIG says.

    Args:
      text: in its place, for tests; None for the environment variable.

    Raises:
      ValueError: in one sentence, with what is wrong and what would be right.
    """
    text = os.environ.get("TF_CONFIG", "") if text is None else text
    if not text.strip():
        raise ValueError(f"--distribute=multi_worker: TF_CONFIG is not set; {_SHAPE}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is not JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("cluster"), dict):
        raise _wrong("has no cluster")
    jobs, task = found["cluster"], found.get("task")
    if other := sorted(jobs.keys() - {"chief", "worker"}):
        raise _wrong(f"has tasks of the type {other[0]}, which takes no part in this training")
    addresses = [*_addresses(jobs, "chief"), *_addresses(jobs, "worker")]
    if len(_addresses(jobs, "chief")) > 1:
        raise _wrong("has more than one chief")
    if len(addresses) < 2:
        raise _wrong("names fewer than two workers")
    if twice := [a for a in addresses if addresses.count(a) > 1]:
        raise _wrong(f"names {twice[0]} twice")
    if not isinstance(task, dict):
        raise _wrong("has no task")
    kind, index = task.get("type"), task.get("index")
    if kind not in jobs:
        raise _wrong(f"has the task type {kind!r}, which is not in its cluster")
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if not isinstance(index, int) or not 0 <= index < len(jobs[kind]):
        raise _wrong(f"has the task index {index!r} for {len(jobs[kind])} of the type {kind}")
    number = index + (len(_addresses(jobs, "chief")) if kind == "worker" else 0)
    return Cluster(tuple(addresses), number, {k: len(v) for k, v in jobs.items()})


def _wrong(what: str) -> ValueError:
    return ValueError(f"TF_CONFIG {what}; {_SHAPE}")


def _addresses(jobs: dict[str, Any], kind: str) -> list[str]:
    found = jobs.get(kind, [])
    if not isinstance(found, list):
        raise _wrong(f"has no list of addresses for {kind}")
    for address in found:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise _wrong(f"has the address {address!r}")
    return found


def check_port(cluster: Cluster) -> None:
    """Refuses to begin if this worker's port is in use.

    Raises:
      ValueError: in one sentence.
    """
    address = cluster.addresses[cluster.number]
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("", _port(address)))
        except OSError as error:
            raise ValueError(
                f"TF_CONFIG: the port of {address} cannot be listened on ({error.strerror}); "
                "should be a free port of this machine"
            ) from error


def wait_for_others(cluster: Cluster, seconds: float, say: Callable[[str], None]) -> None:
    """Has the chief wait until all other workers listen.

    Args:
      cluster: of the chief.
      seconds: how long.
      say: told what is waited for, if that takes more than two seconds.

    Raises:
      ValueError: in one sentence, if one is not there by then.
    """
    began, told = time.monotonic(), False
    missing = list(cluster.addresses[1:])
    while missing:
        missing = [a for a in missing if not _listens(a)]
        waited = time.monotonic() - began
        if missing and waited > seconds:
            raise ValueError(
                f"The worker at {missing[0]} was not there within {seconds:g} seconds "
                "(--worker_timeout); start the same command on every machine of TF_CONFIG"
            )
        if missing and waited > 2 and not told:
            told = True
            say(f"Waiting for the workers at {', '.join(missing)}.")
        if missing:
            time.sleep(0.2)


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address.rpartition(":")[0], _port(address)), timeout=1):
            return True
    except OSError:
        return False


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
