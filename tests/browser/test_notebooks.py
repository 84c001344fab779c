"""A learner's notebooks, opened in JupyterLab and run from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sovereign_lab.notebook.browser.lab import code_cells, open_notebook, run_all
from sovereign_lab.notebook.browser.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize("notebook", ["00_tour", "12_float4", "13_scoreboard"])
def test_every_cell_runs(
    notebook: str, page: Page, server: Server, shot: Callable[[Page, str], Path]
) -> None:
    if notebook == "00_tour":
        _tell_a_short_story(server.folder / "00_tour.ipynb")
    open_notebook(page, server, f"{notebook}.ipynb")
    assert all(cell.count is None and not cell.outputs for cell in code_cells(page))

    run_all(page)

    cells = code_cells(page)
    assert [cell.count for cell in cells] == list(range(1, len(cells) + 1))
    assert [cell.error for cell in cells if cell.error] == []
    figures = page.locator(".js-plotly-plot .main-svg")
    figures.first.wait_for()
    shot(page, notebook)


def _tell_a_short_story(tour: Path) -> None:
    """The whole story is what nbval runs; here it would take most of the time."""
    text = tour.read_text()
    assert "max_tokens=300" in text
    tour.write_text(text.replace("max_tokens=300", "max_tokens=20"))
