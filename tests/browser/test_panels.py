"""The generation panel and the explorers, used by hand and by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sovereign_lab.notebook.browser.lab import code_cells, run_all, show_cell

if TYPE_CHECKING:
    from playwright.sync_api import Page

    Open = Callable[..., Page]
    Shot = Callable[[Page, str], Path]

# The maker, the name in the page, and a control that an arrow key moves.
EXPLORERS = [
    ("explore_kv_scaling", "kv-scaling", "position"),
    ("explore_warp", "warp", "stride"),
    ("explore_q4_0_block", "q4-0-block", "block"),
    ("explore_cache_writes", "cache-writes", "position"),
]


def test_every_explorer_is_drawn_and_follows_its_slider(open_cells: Open, shot: Shot) -> None:
    page = open_cells("import sovereign_lab as sl", *(f"sl.{maker}()" for maker, _, _ in EXPLORERS))
    run_all(page)
    assert [cell.error for cell in code_cells(page) if cell.error] == []
    for number, (_, name, control) in enumerate(EXPLORERS, 1):
        show_cell(page, number)
        root = page.locator(f'[data-testid="{name}"][data-ready="true"]')
        root.wait_for()
        view = root.locator('[data-part="view"]')
        before, shown = view.inner_html(), root.locator(f'[data-shown="{control}"]').inner_text()
        assert "<svg" in before
        slider = root.locator(f'[data-control="{control}"]')
        slider.focus()
        for _ in range(3):
            slider.press("ArrowRight")
        page.wait_for_function(
            "([name, before]) => document.querySelector("
            "`[data-testid='${name}'] [data-part=view]`).innerHTML !== before",
            arg=[name, before],
        )
        assert root.locator(f'[data-shown="{control}"]').inner_text() != shown
        assert root.get_attribute("data-error") == "false"
        shot(page, name)


def test_text_streams_into_the_generation_panel_and_stops(open_cells: Open, shot: Shot) -> None:
    page = open_cells("import sovereign_lab as sl", "sl.generation_panel()")
    run_all(page)
    root = page.locator('[data-testid="generation"][data-ready="true"]')
    root.wait_for()
    text = root.locator('[data-column="0"] [data-part="text"]')
    root.locator('[data-control="max_tokens"]').fill("100000")
    root.locator('[data-action="start"]').click()
    grown = "length => document.querySelector('[data-column=\"0\"] [data-part=text]').innerText.length > length"
    page.wait_for_function(grown, arg=40)
    first = len(text.inner_text())
    page.wait_for_function(grown, arg=first)  # still under way: it comes piece by piece
    assert root.get_attribute("data-busy") == "true"
    shot(page, "generation")

    root.locator('[data-action="stop"]').click()

    page.locator('[data-testid="generation"][data-busy="false"]').wait_for()
    assert "Stopped" in root.locator('[data-part="status"]').inner_text()
    assert "tok/s" in root.locator('[data-column="0"] [data-part="speed"]').inner_text()
    assert text.inner_text().startswith("Once upon a time")
