"""One JupyterLab and one Chromium for all tests here, and a page for each.

A page must end without an error on its console. Screenshots go to the folder that SOVEREIGN_SCREENSHOTS names, or to
pytest's own; a test that fails always leaves one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import nbformat
import pytest

from sovereign_lab.notebook.browser.chromium import chromium, why_no_browser
from sovereign_lab.notebook.browser.lab import PATIENCE, open_notebook
from sovereign_lab.notebook.browser.server import Server, jupyterlab
from sovereign_lab.notebook.copies import copy_notebooks

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    Shot = Callable[[Page, str], Path]

WIDTH, HEIGHT = 1200, 900
# A test's outcome, for the fixture that takes a picture of what failed.
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pictures go to."""
    named = os.environ.get("SOVEREIGN_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab on a learner's copies of the notebooks, with kernels on the SIMT device."""
    reason = why_no_browser()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("jupyterlab")
    copy_notebooks(folder / "notebooks")
    environment = {
        "SOVEREIGN_DEVICE": "simt",
        "SOVEREIGN_LEDGER": str(folder / "ledger.sqlite3"),
    }
    with jupyterlab(folder / "notebooks", folder / "scratch", environment) as running:
        yield running


@pytest.fixture(scope="session")
def context(server: Server) -> Iterator[BrowserContext]:
    """A browser that has loaded nothing yet; its pages share the cache of JupyterLab's scripts."""
    with chromium() as browser:
        made = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        made.set_default_timeout(PATIENCE * 1e3)
        yield made


@pytest.fixture
def page(
    context: BrowserContext, server: Server, screenshots: Path, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """An empty page; when the test is over, kernels are shut down and the console must show no error."""
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page
        if request.node.stash.get(FAILED, False):
            page.screenshot(path=screenshots / f"failed-{_file_name(request.node.name)}.png")
    finally:
        page.close()
        _shut_kernels_down(server)
    assert not errors, "the page's console shows errors:\n" + "\n".join(errors)


@pytest.fixture
def shot(screenshots: Path) -> Shot:
    """Takes a picture of the page as it is, and keeps it under a name."""

    def take(page: Page, name: str) -> Path:
        path = screenshots / f"{_file_name(name)}.png"
        page.screenshot(path=path)
        return path

    return take


@pytest.fixture
def open_cells(page: Page, server: Server, request: pytest.FixtureRequest) -> Callable[..., Page]:
    """Opens a new notebook with these code cells."""

    def open_new(*sources: str) -> Page:
        name = f"{_file_name(request.node.name)}.ipynb"
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
        # Without it JupyterLab asks which kernel to take.
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(book, server.folder / name)
        open_notebook(page, server, name)
        return page

    return open_new


def _file_name(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-")


def _shut_kernels_down(server: Server) -> None:
    def ask(method: str, place: str) -> bytes:
        headers = {"Authorization": f"token {server.token}"}
        with urlopen(Request(server.url + place, method=method, headers=headers)) as answer:
            return bytes(answer.read())

    for session in json.loads(ask("GET", "api/sessions")):
        ask("DELETE", f"api/sessions/{session['id']}")
