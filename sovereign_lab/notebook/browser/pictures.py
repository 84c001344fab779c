"""`python -m sovereign_lab.notebook.browser.pictures`: take the README's pictures anew, into notebooks/pictures/.

The last cell of a notebook each, in the light theme and on the SIMT device, WIDTH pixels wide.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from sovereign_lab.notebook.browser.bench import notebook_page
from sovereign_lab.notebook.browser.lab import command, run_all, wait_for
from sovereign_lab.notebook.browser.png import save
from sovereign_lab.notebook.copies import originals
from sovereign_lab.notebook.places import in_checkout

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, HEIGHT = 1200, 1600
# What JupyterLab shows left and right of a cell, once its file browser is put away.
BESIDE = 98


def main() -> None:
    """Write the pictures into the folder named on the command line, or into the checkout's."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else in_checkout("notebooks") / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for take in (tour, workbench, explorer):
        path = folder / f"{take.__name__}.png"
        take(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def tour(path: Path) -> None:
    """The tour's story, as its own cells tell it."""
    cells = nbformat.read(originals()["00"], as_version=4).cells
    code = [str(cell.source) for cell in cells if cell.cell_type == "code"]
    told = next(i for i, source in enumerate(code) if "engine.stream" in source)
    with notebook_page(*code[: told + 1], width=WIDTH + BESIDE, height=HEIGHT) as page:
        _run(page)
        _save_last_cell(page, path)


def workbench(path: Path) -> None:
    """A kernel with its heat by line, and the card of Inspect."""
    cell = 'import sovereign_lab as sl\n\nsl.workbench("gemv_q4_0", "coalesced")'
    with notebook_page(cell, width=WIDTH + BESIDE, height=HEIGHT) as page:
        _run(page)
        root = page.locator('[data-testid="workbench"][data-ready="true"]')
        root.get_by_test_id("workbench-inspect").click()
        wait_for(page, "document.querySelector('[data-testid=workbench]').dataset.card !== 'none'")
        wait_for(page, "document.querySelector('[data-testid=workbench]').dataset.busy === 'false'")
        _save_last_cell(page, path)


def explorer(path: Path) -> None:
    """The addresses of one warp, and the sectors that they cost."""
    cell = 'import sovereign_lab as sl\n\nsl.explore_warp("gemv-w-strided")'
    with notebook_page(cell, width=WIDTH + BESIDE, height=HEIGHT) as page:
        _run(page)
        page.locator('[data-testid="warp"][data-ready="true"]').wait_for()
        _save_last_cell(page, path)


def _run(page: "Page") -> None:
    command(page, "application:toggle-left-area")
    run_all(page)


def _save_last_cell(page: "Page", path: Path) -> None:
    page.mouse.move(0, 0)
    page.add_style_tag(content=".jp-cell-toolbar { display: none !important; }")
    cell = page.locator(".jp-Notebook .jp-CodeCell").last
    save(page, cell.screenshot(animations="disabled"), path)


if __name__ == "__main__":
    main()
