"""Headless Chromium for the tests of HTML pages: starts it, opens a file, tells what its console said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.needs import find_command

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def chromium(profile: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """
    Give a selenium driver of a fresh headless Chromium; it ends with the block.

    Args:
        profile: An empty folder for the browser's own files.
        width: Of the window, CSS pixels.
        height: Likewise.
        dark: What the system prefers.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = find_command("chromium") or "chromium"
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=Service(find_command("chromedriver") or "chromedriver")
    )
    driver.set_script_timeout(90)
    try:
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, path: Path) -> None:
    """Open a file and draw all of its charts, also those that are not in view."""
    driver.get(path.resolve().as_uri())
    driver.execute_async_script(
        "const done = arguments[0]; window.distbench.drawAll().then(() => setTimeout(done, 100));"
    )


def console_errors(driver: Any) -> list[str]:
    """Return what the page complained of since the last call."""
    return [
        entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]
