"""Environment of Flower's processes: variables, a temporary directory, a port, processors."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from flhe.errors import ConfigError
from flhe.wire import files

FLOWER_CONFIG = """\
[superlink]
default = "flhe"

[superlink.flhe]
address = "127.0.0.1:{port}"
insecure = true
"""


def environment(nodes: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of Flower and its children: private, offline, quiet, one thread a node.

    `nodes` is the directory of the nodes' state directories, `scratch` that of temporary files.
    """
    env = dict(os.environ)
    env.pop("RAY_ADDRESS", None)  # never join a cluster that happens to run here
    env |= {
        "FLHE_HOME": str(nodes),
        "FLWR_HOME": str(scratch),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(scratch),
        "RAY_gcs_server_request_timeout_seconds": "600",  # 60 is too few on a busy machine
        "RAY_worker_niceness": "0",  # Ray's own is 15: nodes would starve beside other work
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
    }
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env.setdefault(name, "1")
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1", "localhost"]))
    return env


def data_home() -> Path:
    """Return the directory of flhe's files among the user's data; it may not exist yet."""
    base = os.environ.get("XDG_DATA_HOME") or files.home() / ".local/share"
    return Path(base).absolute() / "flhe"


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a directory that is removed when the run ends; Ray's socket paths in it are short."""
    base = tempfile.gettempdir()
    if len(base) > 20 and Path("/tmp").is_dir():  # noqa: S108
        base = "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="flhe-", dir=base, ignore_cleanup_errors=True) as name:
        yield Path(name)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def answers(port: int, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a SuperLink answers on `port`, over TLS with a `context`; never by a proxy."""
    kind = partial(HTTPSConnection, context=context) if context else HTTPConnection
    with suppress(OSError, HTTPException), closing(kind("127.0.0.1", port, timeout=1.0)) as link:
        link.request("GET", "/health")
        return link.getresponse().status == 200
    return False


def cpus() -> int:
    """Return the number of processors for this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def creatable(path: Path, named: str) -> Path:
    """Return the absolute path of a file to be written; ConfigError in terms of `named`."""
    path = path.expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{named}: name a file in a directory that exists")
    return path


def own_name() -> str:
    """Return the command that calls flhe from here: a path if it lies in a folder below."""
    script = Path(sys.executable).with_name("flhe")
    if script.is_file() and script.is_relative_to(Path.cwd()):
        return str(script.relative_to(Path.cwd()))
    return "flhe"
