"""A headless Chromium, driven by the DevTools protocol over pipes: no port, no driver, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """The browser's program; None if none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a headless browser; what it logs, throws and requests is recorded.

    Attributes
    ----------
    errors
        Console errors, uncaught exceptions and violations of the page's policy, as text.
    requests
        The address of everything that the page requested.
    downloads
        The folder in which files that the page saves arrive.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        program = find_chromium()
        assert program is not None, "check find_chromium first"
        self.size = (width, height)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.downloads = Path(self._folder.name) / "downloads"
        self.downloads.mkdir()
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
        options += (
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-extensions",
            "--disable-background-networking",
            "--mute-audio",
        )
        options += ("--force-color-profile=srgb", f"--user-data-dir={self._folder.name}/profile")
        # The browser reads commands from descriptor 3, and answers on 4.
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", program, *options, "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)
        self._folder.cleanup()

    def call(self, method: str, timeout: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._record(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _record(self, event: dict[str, Any]) -> None:
        method, content = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value", part)) for part in content["args"]))
        elif method == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.errors.append(content["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window's content."""
        self.size = (width, height)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def prefer(self, scheme: str) -> None:
        """Set the system's colour scheme, "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file, and wait until its scripts have run."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        self.wait(lambda: self.evaluate("document.documentElement?.dataset.ready === 'true'"))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until a condition is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError("the condition did not become true")
            time.sleep(0.03)
        return value

    def point(self, selector: str) -> tuple[float, float]:
        """The centre of the first element that a selector finds, scrolled into view."""
        script = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            if (!e) return null; e.scrollIntoView({{block: "center", behavior: "instant"}});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        found = self.evaluate(script)
        assert found is not None, f"nothing matches {selector}"
        return found[0], found[1]

    def click(self, selector: str, count: int = 1) -> None:
        """Click as a user does, `count` times in a row."""
        self.click_at(*self.point(selector), count=count)

    def click_at(self, x: float, y: float, count: int = 1) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=number)

    def press(self, key: str, code: str = "") -> None:
        """Press a key: a letter, or a name such as Enter."""
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, **extra)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a `<select>`."""
        self.evaluate(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.value = {json.dumps(value)}; e.dispatchEvent(new Event("change", {{bubbles: true}})); }})()""")

    def downloaded(self, name: str) -> bytes:
        """The content of a file that the page saves, once it is complete."""
        path = self.downloads / name
        self.wait(lambda: path.exists() and path.stat().st_size and not list(self.downloads.glob("*.crdownload")))
        return path.read_bytes()

    def screenshot(self, path: Path, complete: bool = True) -> None:
        """Save a picture of the page as PNG: complete, or what the window shows."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=complete)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print_pdf(self, path: Path) -> None:
        """Print the page on A4."""
        answer = self.call("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(answer["data"]))
