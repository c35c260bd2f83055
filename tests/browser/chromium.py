"""Headless Chromium by its DevTools protocol over a pair of pipes: no driver, no socket, no other package."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOW_TO_GET_IT = "no chromium found: apt-get install chromium"

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip

# Chromium reads commands from file 3 and writes answers to file 4; both may be in use here, so a process of its own
# puts them there. They are moved out of the way first: one may be where the other has to go.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """One browser with one page; `events` are all that it told of since `open`."""

    def __init__(self):
        program = shutil.which("chromium")
        assert program is not None, HOW_TO_GET_IT
        self.profile = tempfile.mkdtemp(prefix="whmc-chromium-")
        their_read, our_write = os.pipe()
        our_read, their_write = os.pipe()
        command = [program, *ARGUMENTS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(their_read), str(their_write), *command],
            pass_fds=(their_read, their_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        self.commands, self.answers = os.fdopen(our_write, "wb"), os.fdopen(our_read, "rb")
        self.number, self.rest, self.events, self.session = 0, b"", [], None
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.tell(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(EOFError, BrokenPipeError):
            self.session = None
            self.tell("Browser.close")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()
        with contextlib.suppress(BrokenPipeError):
            self.commands.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def tell(self, method, **params):
        """A command; its answer. Events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers.fileno(), 1 << 20)
            if not more:
                raise EOFError("chromium went away")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        answer = json.loads(message)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False):
        """The file in a window of this size, loaded and laid out."""
        phone = width < 600
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.events = []
        self.tell("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()
        self.run("Promise.all([...document.images].map(image => image.decode())).then(() => true)")

    def run(self, script: str):
        """The value of an expression in the page."""
        answer = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses of everything that the page asked for, besides what it holds itself."""
        asked = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in asked if not one["request"]["url"].startswith("data:")]

    def complaints(self) -> list[dict]:
        """What the page wrote on the console, and what the browser holds against it."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        return [event for event in self.events if event["method"] in kinds]

    def accessible(self, role: str) -> list[str]:
        """Names of all things of a role, as a screen reader is told."""
        nodes = self.tell("Accessibility.getFullAXTree")["nodes"]
        return [
            node.get("name", {}).get("value", "")
            for node in nodes
            if not node.get("ignored") and node.get("role", {}).get("value") == role
        ]

    def screenshot(self, whole: bool = True) -> bytes:
        """PNG of the whole page."""
        return base64.b64decode(self.tell("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.tell("Page.printToPDF", printBackground=True)["data"])
