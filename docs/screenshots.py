"""Pictures for the README, taken of the pages as a browser shows them.

    python docs/screenshots.py [--into docs]

Starts the bare `mlflow ui` on the runs of this repository and a headless Chromium (Debian: apt-get install chromium), and
writes runs.png (the table of runs), charts.png (their curves), compare.png (the two newest side by side) and report.png
(reports/report.html). The tests look at the same pages through the same functions.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-quic", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--window-size=1500,1000",
)  # fmt: skip
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads commands from its file 3 and answers on its file 4."""
PAGE_SECONDS = 120.0


class Browser:
    """One page in a headless Chromium, spoken to over its DevTools pipe (https://chromedevtools.github.io/devtools-protocol)."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Waits until a JavaScript condition is true in the page. Raises TimeoutError."""
        end = time.monotonic() + PAGE_SECONDS
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {PAGE_SECONDS} s: {condition}")
            time.sleep(0.2)

    def text(self, *, until: tuple[str, ...]) -> str:
        """The text that the page shows, as soon as all of `until` is in it. Raises TimeoutError."""
        shown = "document.body ? document.body.innerText : ''"
        self.wait_for(f"{json.dumps(until)}.every(part => ({shown}).includes(part))")
        return str(self.evaluate(shown))

    def type_into(self, selector: str, text: str) -> None:
        self.wait_for(f"document.querySelector(`{selector}`) != null")
        self.evaluate(f"document.querySelector(`{selector}`).focus()")
        self.call("Input.insertText", text=text)

    def open(self, url: str, *, until: tuple[str, ...]) -> str:
        """Opens the page and gives the text that it shows, as soon as all of `until` is in it. Raises TimeoutError."""
        self.call("Page.navigate", url="about:blank")  # a change behind the # alone would load nothing
        self.call("Page.navigate", url=url)
        return self.text(until=until)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What the window shows, or the whole page, as a PNG file."""
        time.sleep(1)  # charts draw after their text
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))

    def _next_message(self) -> Any:
        while b"\0" not in self._unread:
            read = os.read(self._answers, 1 << 16)
            assert read, "Chromium has ended"
            self._unread += read
        message, self._unread = self._unread.split(b"\0", maxsplit=1)
        return json.loads(message)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile, closed at the end."""
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        commands, answers = os.pipe(), os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(commands[0]), str(answers[1]), "chromium", *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.kill)
        for handle in (commands[0], answers[1]):
            os.close(handle)
        for handle in (commands[1], answers[0]):
            stack.callback(os.close, handle)
        yield Browser(commands[1], answers[0])


@contextmanager
def mlflow_ui(folder: Path) -> Iterator[str]:
    """The address of a bare `mlflow ui` started in `folder`, stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            ["mlflow", "ui", "--port", str(port)], cwd=folder, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 15)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(int(PAGE_SECONDS / 0.2)):
        assert process.poll() is None, f"mlflow ui ended with {process.returncode}"
        try:
            with urlopen(url):
                return
        except URLError:
            time.sleep(0.2)
    raise TimeoutError(f"{url} does not answer")


def runs_page(address: str, experiment: str) -> str:
    return f"{address}/#/experiments/{experiment}/runs"


def charts_page(address: str, experiment: str) -> str:
    return f"{runs_page(address, experiment)}?compareRunsMode=CHART"


def compare_page(address: str, experiment: str, runs: list[str]) -> str:
    return f"{address}/#/compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment]))}"


CLOSE_ASSISTANT = "document.querySelector('[data-component-id=\"mlflow.assistant.chat_panel.close\"]')?.click()"


def take(folder: Path, into: Path) -> list[Path]:
    """Takes the pictures of the repository in `folder`; needs two finished runs and a report."""
    runs, experiment = newest_runs(folder)
    names = tuple(runs.values())
    with mlflow_ui(folder) as address, chromium() as browser:
        taken = []

        def shoot(name: str) -> None:
            browser.evaluate(CLOSE_ASSISTANT)
            browser.screenshot(into / name)
            taken.append(into / name)

        browser.open(runs_page(address, experiment), until=names)
        shoot("runs.png")
        browser.open(charts_page(address, experiment), until=(*names, "Model metrics"))
        browser.type_into("input[placeholder='Search metric charts']", "val_")
        browser.text(until=("val_accuracy", "val_loss"))
        browser.wait_for("document.querySelectorAll('.js-plotly-plot .trace').length >= 2")
        shoot("charts.png")
        browser.open(compare_page(address, experiment, list(runs)), until=("Comparing 2 Runs", *names))
        shoot("compare.png")
        browser.open((folder / "reports/report.html").resolve().as_uri(), until=())
        shoot("report.png")
    return taken


def newest_runs(folder: Path) -> tuple[dict[str, str], str]:
    """{id: name} of the two newest finished runs, and their experiment's id."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        query = (
            "select run_uuid, name, experiment_id from runs where status = 'FINISHED' order by start_time desc limit 2"
        )
        runs = database.execute(query).fetchall()
    if len(runs) < 2:
        sys.exit("error: two finished runs are needed: make repro, then dvc exp run -S train.lr=0.05")
    return {run: name for run, name, _ in runs}, str(runs[0][2])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path("docs"), help="folder for the pictures")
    arguments = parser.parse_args()
    if not shutil.which("chromium"):
        sys.exit("error: chromium is not there (Debian: apt-get install chromium)")
    for path in take(Path(), arguments.into):
        print(path)


if __name__ == "__main__":
    main()
