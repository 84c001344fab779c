"""`python -m sovereign_lab.notebook.browser.bench`: how long a person waits for the widgets, measured in the page.

First paint: from the start of a widget's script to the first frame with it, and from running its cell, so with what the
kernel does, to the same frame. Key press: to the frame in which the text stands highlighted, in a kernel of 300 lines.
Prints; judges nothing.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.notebook.browser.chromium import chromium, why_no_browser
from sovereign_lab.notebook.browser.lab import NOTEBOOK, open_notebook, run_all, wait_for
from sovereign_lab.notebook.browser.server import jupyterlab

if TYPE_CHECKING:
    from playwright.sync_api import Page

# By the name in the page's measures.
WIDGETS = {
    "workbench": 'sl.workbench("gemv_q4_0")',
    "generation": "sl.generation_panel()",
    "kv-scaling": "sl.explore_kv_scaling()",
    "warp": "sl.explore_warp()",
    "q4-0-block": "sl.explore_q4_0_block()",
    "cache-writes": "sl.explore_cache_writes()",
    "timeline": "sl.explore_timeline()",
}
PAINTS = 7
LINES = 300
TYPED = "float sum = x[i] * y[i] + (lane == 0 ? 1.0f : 0.0f); // total"


@contextmanager
def notebook_page(*cells: str, width: int = 1200, height: int = 900) -> "Iterator[Page]":
    """A page of JupyterLab with these code cells, on the SIMT device; all of it is gone afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "notebooks"
        folder.mkdir()
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(book, folder / "widgets.ipynb")
        environment = {
            "SOVEREIGN_DEVICE": "simt",
            "SOVEREIGN_LEDGER": str(Path(scratch) / "ledger.sqlite3"),
        }
        with (
            jupyterlab(folder, Path(scratch) / "server", environment) as server,
            chromium() as browser,
        ):
            page = browser.new_page(viewport={"width": width, "height": height})
            open_notebook(page, server, "widgets.ipynb")
            yield page


def paint_figures(page: "Page") -> list[Figure]:
    """Each widget of the open notebook, whose cell is run PAINTS times, once before it counts."""
    figures = []
    for number, name in enumerate(WIDGETS, 1):
        samples = [_paint(page, number, name) for _ in range(PAINTS + 1)][1:]
        own, whole = zip(*samples, strict=True)
        figures.append(Figure.of(f"{name}: script to first paint", "ms", list(own)))
        figures.append(Figure.of(f"{name}: run of the cell to first paint", "ms", list(whole)))
    return figures


def _paint(page: "Page", number: int, name: str) -> tuple[float, float]:
    """ms from the script's start, and from running the cell, to the first paint."""
    found: list[float] = page.evaluate(
        f"""async ([number, measure]) => {{
            const notebook = {NOTEBOOK}.content;
            notebook.activeCellIndex = number;
            await notebook.scrollToItem(number, "start");
            performance.clearMeasures(measure);
            const run = performance.now();
            await jupyterapp.commands.execute("notebook:run-cell");
            for (let wait = 0; wait < 6000; wait++) {{
                const [entry] = performance.getEntriesByName(measure);
                if (entry) return [entry.duration, entry.startTime + entry.duration - run];
                await new Promise(resolve => setTimeout(resolve, 10));
            }}
            return [];
        }}""",
        [number, f"sl-{name}:paint"],
    )
    if not found:
        raise LabError(f"The widget {name} was not painted within a minute.")
    return found[0], found[1]


def key_figure(page: "Page") -> Figure:
    """A hand that types into the middle of a kernel of LINES lines in the notebook's workbench."""
    sources = [v.source for name in ("attention", "gemv_q4_0") for v in op(name).variants.values()]
    lines = "".join(sources).splitlines()[:LINES]
    page.evaluate(f"{NOTEBOOK}.content.scrollToItem(1, 'start')")
    bench = page.locator('[data-testid="workbench"][data-ready="true"]')
    bench.evaluate(
        """(root, text) => {
            root.workbench.setText(text);
            const view = root.workbench.view, middle = view.state.doc.line(Math.floor(view.state.doc.lines / 2));
            view.dispatch({ selection: { anchor: middle.to }, scrollIntoView: true });
            view.focus();
        }""",
        "\n".join(lines),
    )
    page.keyboard.press("Enter")
    page.keyboard.type(TYPED, delay=60)
    measured = "performance.getEntriesByName('sl-workbench:key')"
    wait_for(page, f"{measured}.length > {len(TYPED)}")
    samples: list[Any] = page.evaluate(f"{measured}.map(entry => entry.duration)")
    what = f"workbench: key press to highlighted text, {len(lines)} lines"
    return Figure.of(what, "ms", samples[-len(TYPED) :])


def main() -> None:
    """Print the figures, or why there are none."""
    reason = why_no_browser()
    if reason:
        print(f"Not measured in a browser: {reason}")
        return
    with notebook_page("import sovereign_lab as sl", *WIDGETS.values()) as page:
        run_all(page)
        for figure in [*paint_figures(page), key_figure(page)]:
            print(figure)


if __name__ == "__main__":
    main()
