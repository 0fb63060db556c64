"""Where runs are tracked: the address, whether it is usable as it stands, and the command of the UI. No MLflow here."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil

from tuner.errors import InputError
from tuner.provenance import mask_uri

OFF = "off"
DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "ceph", "glusterfs")


def default(runs: Path) -> str:
    """The SQLite store in the runs directory."""
    return f"sqlite:///{(runs / DATABASE).resolve()}"


def resolve(uri: str | None, runs: Path) -> str | None:
    """
    The address to track to; None for `off`.

    Args:
        uri: As the user gave it; None = the store in `runs`.
        runs: Directory of all studies.

    Raises:
        InputError: A plain folder, or a scheme that MLflow does not know.
    """
    if uri is None:
        return default(runs)
    if uri == OFF:
        return None
    scheme = re.match(r"([a-z0-9]+)(\+[a-z0-9]+)?:", uri)
    if uri == "databricks" or (scheme and scheme.group(1) in _SCHEMES):
        return uri
    path = uri.removeprefix("file://").removeprefix("file:")
    raise InputError(
        f"--mlflow: got {mask_uri(uri)!r}: MLflow keeps no runs in plain folders any more; "
        f"use sqlite:///{Path(path).absolute() / DATABASE}, http://HOST:PORT, or {OFF}"
    )


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite address, absolute; None for any other address and for memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(found.group(1)).resolve() if found and found.group(1) != ":memory:" else None


def same_database(uri: str, storage: str | Path) -> bool:
    """Whether tracking and Optuna would share one database: their tables and locks would meet."""
    other = storage.resolve() if isinstance(storage, Path) else sqlite_file(storage)
    mine = sqlite_file(uri)
    if mine is not None or other is not None:
        return mine == other
    return str(uri) == str(storage)


def on_network(path: Path) -> str | None:
    """Type of the network file system that `path` lies on, where SQLite's locks fail; None on local disks."""
    mounts = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return mount.fstype if mount is not None and mount.fstype in _NETWORK_FILE_SYSTEMS else None


def ui_command(uri: str, port: int) -> list[str]:
    """
    The command that shows an SQLite or other database store in a browser, on loopback only.

    Raises:
        InputError: `uri` is a server, which has a UI of its own.
    """
    if uri.startswith(("http", "databricks")):
        raise InputError(f"--mlflow: {mask_uri(uri)} is a server with a UI of its own; open it in a browser")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    file = sqlite_file(uri)
    if file is not None:
        command += ["--no-serve-artifacts", "--default-artifact-root", (file.parent / ARTIFACTS).as_uri()]
    return command


def explain(error: BaseException, uri: str) -> str:
    """One line: where, what happened and what to change. Passwords are masked."""
    said = " ".join(str(error).split())
    password = urlsplit(uri).password
    for secret in (password, unquote(password)) if password else ():
        said = said.replace(secret, "***")
    remedy = "the ledger has everything; repeat with `tuner sync` once it works"
    if "error code 403" in said or "nvalid Host" in said or "DNS rebinding" in said:
        host = urlsplit(uri).netloc.rpartition("@")[2]
        remedy = (
            f"the server refuses this host name: start it with `mlflow server --allowed-hosts {host}`, "
            "or use its loopback or private address"
        )
    elif "locked" in said:
        remedy = "another process writes to this database: use an own file, or a tracking server"
    elif uri.startswith("http"):
        remedy = f"is `mlflow server` running there? {remedy}"
    return f"{mask_uri(uri)}: {type(error).__name__}: {said[:300]}: {remedy}"
