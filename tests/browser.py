"""A real browser for tests: headless Chromium, driven over the WebDriver protocol with the standard library alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def need() -> tuple[str, str]:
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] and found[1]:
        return found[0], found[1]
    message = "no chromium and chromedriver: apt-get install chromium chromium-driver"
    if os.environ.get("UTXOD_REQUIRE_CHAIN_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


class Browser:
    """One window. Elements are named by CSS selectors; what is clicked or written into has to be there."""

    def __init__(self, port: int, chromium: str, profile: Path) -> None:
        self._port = port
        options = {"binary": chromium, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(value, dict) and "error" in value), f"{value['error']}: {value['message'][:2000]}"
        return value

    def ask(self, command: str, body: object = None) -> Any:
        """Return a command of the session: posted when it has a body."""
        return self._call("GET" if body is None else "POST", f"{self._session}/{command}", body)

    def devtools(self, command: str, **parameters: object) -> Any:
        return self.ask("goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        self._call("DELETE", self._session)

    def go(self, url: str) -> None:
        self.ask("url", {"url": url})

    def shape(self, width: int, height: int = 900) -> None:
        """Give the page this size, also one that is narrower than windows can be."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def run(self, script: str, *arguments: object) -> Any:
        """Run the body of a function in the page and return what it returns."""
        return self.ask("execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """Return an element's text as it is in the document, seen or not; what is not there has none."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def shown(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def _element(self, selector: str) -> str:
        return str(next(iter(self.ask("element", {"using": "css selector", "value": selector}).values())))

    def click(self, selector: str) -> None:
        self.ask(f"element/{self._element(selector)}/click", {})

    def write(self, selector: str, text: str, *, enter: bool = False) -> None:
        """Type into a field that is emptied before."""
        element = self._element(selector)
        self.ask(f"element/{element}/clear", {})
        self.ask(f"element/{element}/value", {"text": text + ("\ue007" if enter else "")})

    def complaints(self) -> list[str]:
        """Return what was complained of in the console since the last time, but for refusals that were asked for."""
        entries: list[dict[str, str]] = self.ask("se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["source"] != "network" and entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        entries = [json.loads(entry["message"])["message"] for entry in self.ask("se/log", {"type": "performance"})]
        return [
            entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    chromium, driver = need()
    with _driver(driver) as port:
        window = Browser(port, chromium, profile)
        try:
            yield window
        finally:
            window.close()


@contextmanager
def _driver(command: str) -> Iterator[int]:
    words: Sequence[str] = (command, "--port=0")
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=quiet, stdin=quiet, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        try:
            ready = next(line for line in process.stdout if "started successfully on port" in line)
            yield int(ready.rstrip(".\n").rpartition(" ")[2])
        finally:
            os.killpg(process.pid, signal.SIGKILL)
