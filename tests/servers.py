"""A tracking server as a team would have one: MLflow with names and passwords, its runs in PostgreSQL, its files in S3.

    make server        starts all of it, prints what to export, and runs until Ctrl-C

Tests use `servers()` and `tracking_server()`. Everything lies in one temporary folder, on free ports of this machine, and
ends with the program that started it, however that one ends. Passwords are handed on in the environment alone: no command
line, file or address holds one.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.door import enter, say
from darkroom.errors import UserError

HOST = "127.0.0.1"
DATABASE_USER, RUNS, USERS = "darkroom", "runs", "users"
"""The databases: MLflow's runs and registry, and who may use them."""
BUCKET = "darkroom"
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"
"""Where Debian keeps what only PostgreSQL's own scripts call by name."""
START_SECONDS, END_SECONDS = 90, 15

# Waits for the end of the program, whichever way it comes, and clears up what it then left. Each file in `running` is
# named after a process group and holds the signal that ends it.
SWEEPER = """
cat >/dev/null
cd "$0" 2>/dev/null || exit 0
for group in running/*; do kill -s "$(cat "$group")" -- "-${group#running/}"; done 2>/dev/null
sleep 2
for group in running/*; do kill -s KILL -- "-${group#running/}"; done 2>/dev/null
rm -rf "$0"
"""


@dataclass(frozen=True)
class Servers:
    """PostgreSQL and S3, running, with what a tracking server on them needs to know."""

    folder: Path
    database_port: int
    database_password: str
    s3_port: int
    s3_key: str
    s3_secret: str

    def database(self, name: str = RUNS) -> str:
        """The address without a password: clients take it from PGPASSWORD."""
        return f"postgresql://{DATABASE_USER}@{HOST}:{self.database_port}/{name}"

    @property
    def s3(self) -> str:
        return f"http://{HOST}:{self.s3_port}"

    def bucket(self) -> Any:
        """The bucket, as boto3 has it."""
        import boto3
        from botocore.config import Config

        resource = boto3.resource(
            "s3", endpoint_url=self.s3, aws_access_key_id=self.s3_key, aws_secret_access_key=self.s3_secret,
            region_name="us-east-1", config=Config(proxies={}),
        )  # fmt: skip
        return resource.Bucket(BUCKET)

    def environment(self) -> dict[str, str]:
        """What a program that uses both needs to find in its environment."""
        return {
            "PGPASSWORD": self.database_password,
            "AWS_ACCESS_KEY_ID": self.s3_key,
            "AWS_SECRET_ACCESS_KEY": self.s3_secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_S3_ENDPOINT_URL": self.s3,
        }


@dataclass(frozen=True)
class TrackingServer:
    """A running `mlflow server`."""

    address: str
    username: str
    password: str
    group: int
    """its process group"""

    def environment(self) -> dict[str, str]:
        """What a client needs to find in its environment."""
        return {
            "MLFLOW_TRACKING_URI": self.address,
            "MLFLOW_TRACKING_USERNAME": self.username,
            "MLFLOW_TRACKING_PASSWORD": self.password,
        }


def main() -> None:
    username = os.environ.get("MLFLOW_TRACKING_USERNAME") or "darkroom"
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or secrets.token_urlsafe(18)
    say("starting PostgreSQL, an S3 store and mlflow server ...")
    with servers() as stores, tracking_server(stores, username, password) as server:
        say("type in the terminal that you work in:\n")
        for name, value in {**server.environment(), **past_proxies(only_if_any=True)}.items():
            say(f"export {name}={shlex.quote(value)}")
        say(f"\nlogs are in {stores.folder}; Ctrl-C ends it, and everything recorded is gone")
        parent = os.getppid()
        while os.getppid() == parent:  # `make`, killed outright, ends nothing
            time.sleep(1)


@contextmanager
def servers() -> Iterator[Servers]:
    """PostgreSQL with two empty databases and an S3 store with an empty bucket, until the block is left.

    Raises UserError where PostgreSQL is missing or one of them does not start.
    """
    programs = postgres_programs()
    with _workplace() as folder:
        stores = Servers(folder, free_port(), secrets.token_urlsafe(18), free_port(), *_s3_keys())
        with _postgres(programs, stores), _s3(stores):
            yield stores


@contextmanager
def tracking_server(stores: Servers, username: str, password: str, port: int | None = None) -> Iterator[TrackingServer]:
    """`mlflow server` that keeps runs and files in `stores` and knows one user, until the block is left."""
    port = port or free_port()
    (stores.folder / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = NO_PERMISSIONS\ndatabase_uri = {stores.database(USERS)}\n"
        "auth_cache_ttl_seconds = 600\n"  # the password's hash is made to be slow: else each call takes a tenth of a second
    )
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1",
        "--app-name", "basic-auth", "--backend-store-uri", stores.database(),
        "--serve-artifacts", "--artifacts-destination", f"s3://{BUCKET}",
    ]  # fmt: skip
    environment = stores.environment() | {
        "MLFLOW_AUTH_CONFIG_PATH": str(stores.folder / "auth.ini"),
        "MLFLOW_AUTH_ADMIN_USERNAME": username,
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(32),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # judges of language models, in processes that outlive it
    }
    with _running(command, stores.folder, "mlflow", environment, ready=lambda: _answers(port)) as group:
        yield TrackingServer(f"http://{HOST}:{port}", username, password, group)


def postgres_programs() -> Path:
    """The folder with initdb and postgres, the newest that there is. Raises UserError where there is none."""
    on_path = [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    for folder in [*on_path, *sorted(Path("/").glob(POSTGRES_FOLDERS.lstrip("/")), key=_version, reverse=True)]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise UserError(f"PostgreSQL is missing on PATH and in {POSTGRES_FOLDERS}: apt-get install postgresql")


def past_proxies(*, only_if_any: bool = False) -> dict[str, str]:
    """A setting that keeps calls to this machine from a proxy; none with `only_if_any` where no proxy is set."""
    if only_if_any and not any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        return {}
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy", "")
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, [HOST, known])))


def free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _workplace() -> Iterator[Path]:
    """A temporary folder that goes with this program, whatever ends it."""
    folder = Path(tempfile.mkdtemp(prefix="darkroom-server-"))
    (folder / "running").mkdir()
    sweeper = subprocess.Popen(["sh", "-c", SWEEPER, folder], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        assert sweeper.stdin is not None
        sweeper.stdin.close()
        sweeper.wait()


@contextmanager
def _postgres(programs: Path, stores: Servers) -> Iterator[None]:
    """A cluster of its own, with a password from the first moment on."""
    cluster = stores.folder / "postgres"
    cluster.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = _unprivileged()
        os.chown(cluster, user["user"], user["group"])
        stores.folder.chmod(0o711)
    reading = _written(stores.database_password, user.get("user", -1))
    initdb = [programs / "initdb", "--pgdata", cluster, "--username", DATABASE_USER, "--auth", "scram-sha-256",
              "--pwfile", f"/dev/fd/{reading}", "--encoding", "UTF8", "--locale", "C", "--no-sync"]  # fmt: skip
    made = subprocess.run(initdb, cwd="/", pass_fds=[reading], capture_output=True, text=True, **user)
    os.close(reading)
    if made.returncode:
        raise UserError(f"initdb failed: {_last_line(made.stderr)}")
    postgres = [programs / "postgres", "-D", cluster, "-h", HOST, "-p", str(stores.database_port), "-k", "", "-F"]
    with _running(postgres, stores.folder, "postgres", {}, lambda: _make_databases(stores), signal.SIGINT, user):
        yield


def _written(password: str, reader: int) -> int:
    """The reading end of a pipe with the password in it, which that user may open: a file would stay where it lies."""
    reading, writing = os.pipe()
    os.fchown(reading, reader, -1)
    os.write(writing, f"{password}\n".encode())
    os.close(writing)
    return reading


def _make_databases(stores: Servers) -> bool:
    import psycopg

    try:
        with psycopg.connect(stores.database("postgres"), password=stores.database_password, autocommit=True) as known:
            for name in (RUNS, USERS):
                known.execute(f"create database {name}")
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def _s3(stores: Servers) -> Iterator[None]:
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(stores.s3_port)]
    with _running(command, stores.folder, "s3", {}, ready=lambda: listens(stores.s3_port)):
        stores.bucket().create()
        yield


@contextmanager
def _running(
    command: list[Any],
    folder: Path,
    name: str,
    environment: Mapping[str, str],
    ready: Callable[[], bool],
    ending: signal.Signals = signal.SIGTERM,
    user: Mapping[str, Any] | None = None,
) -> Iterator[int]:
    """A process group that answers before the block begins and is gone when it ends; it logs into NAME.log."""
    log = folder / f"{name}.log"
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | past_proxies() | dict(environment), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, **(user or {}),
        )  # fmt: skip
    note = folder / "running" / str(process.pid)
    try:
        note.write_text(ending.name.removeprefix("SIG"))
        _wait(process, name, log, ready)
        yield process.pid
    finally:
        _end(process, ending)
        note.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], name: str, log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"{name} did not start: {_last_line(log.read_text())}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes], ending: signal.Signals) -> None:
    for each in (ending, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _answers(port: int) -> bool:
    """Whether the server is past its start: it listens a moment before."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def _unprivileged() -> dict[str, Any]:
    try:
        postgres = pwd.getpwnam("postgres")
    except KeyError:
        raise UserError("PostgreSQL does not run as root, and there is no user postgres: useradd postgres") from None
    return {"user": postgres.pw_uid, "group": postgres.pw_gid, "extra_groups": []}


def _version(folder: Path) -> float:
    number = folder.parent.name
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0


def _s3_keys() -> tuple[str, str]:
    return f"AK{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


if __name__ == "__main__":
    enter(main)
