"""Chromium as the machine has it, without a window."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sovereign_lab.errors import LabError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No sandbox: Chromium refuses to run as root with one, and it opens the lab's own pages alone. Shared memory is small
# in many containers.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


def find_chromium() -> str | None:
    """The path of the first of `NAMES` that is installed; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def why_no_browser() -> str | None:
    """A sentence that says what is missing for `chromium`; None where nothing is."""
    if find_spec("playwright") is None:
        return "Playwright is not installed; `pip install playwright` brings it."
    path = find_chromium()
    if path is None:
        return f"No Chromium is installed (none of {', '.join(NAMES)}); on Debian: apt install chromium."
    # Some systems have a stub by this name, which only offers to install the browser.
    if subprocess.run([path, "--version"], capture_output=True).returncode:
        return f"{path} does not start; on Debian: apt install chromium."
    return None


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A headless Chromium. Raises LabError where Playwright or Chromium is missing."""
    reason = why_no_browser()
    if reason:
        raise LabError(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
