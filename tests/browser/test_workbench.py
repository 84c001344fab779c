"""The kernel workbench, as a learner uses it: edit, check, break, cancel, restart, and all of it by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.browser.lab import (
    code_cells,
    restart_kernel,
    run_all,
    use_theme,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    Open = Callable[..., Page]
    Shot = Callable[[Page, str], Path]

# `add` has one line of work, so that a check is quick.
CELLS = ("import sovereign_lab as sl", 'sl.workbench("add")')
SOURCE = op("add").variant("elementwise").source
WORK = "if (i < n) x[i] += y[i];"
WORK_LINE = SOURCE[: SOURCE.index(WORK)].count("\n") + 1
# The writes keep a compiler from taking the loop away.
ENDLESS = SOURCE.replace(WORK, "while (true) *(volatile float*)&x[0] = 0;")
QUICK, SLOW = 60e3, 180e3  # ms: a busy machine compiles and checks in many times its usual seconds


def workbench(page: Page, number: int = 0) -> Locator:
    """A workbench of the page that is ready for a hand."""
    root = page.get_by_test_id("workbench").nth(number)
    root.wait_for()
    has(root, "ready", "true")
    return root


def has(root: Locator, attribute: str, value: str, timeout: float = QUICK) -> None:
    """Wait until the workbench says so of itself."""
    from playwright.sync_api import expect

    expect(root).to_have_attribute(f"data-{attribute}", value, timeout=timeout)


def press(root: Locator, button: str) -> None:
    root.get_by_test_id(f"workbench-{button}").click(timeout=QUICK)


def text(root: Locator) -> str:
    return str(root.evaluate("root => root.workbench.text()"))


def write(root: Locator, source: str) -> None:
    """Put a whole text into the editor, as a paste does."""
    root.evaluate("(root, text) => root.workbench.setText(text)", source)


def retype(root: Locator, end: str, new: str) -> None:
    """A hand at the line of work: to its end, back over `end`, then `new`."""
    root.locator(".cm-line").nth(WORK_LINE - 1).click()
    keyboard = root.page.keyboard
    keyboard.press("End")
    for _ in end:
        keyboard.press("Backspace")
    keyboard.type(new)


def check(root: Locator) -> str:
    """Press Check and wait; what the card says."""
    press(root, "check")
    has(root, "busy", "false", SLOW)
    return root.get_by_test_id("workbench-card").inner_text()


def opened(open_cells: Open) -> tuple[Page, Locator]:
    page = open_cells(*CELLS)
    run_all(page)
    assert [cell.error for cell in code_cells(page) if cell.error] == []
    return page, workbench(page)


def test_the_card_follows_an_edit_that_is_wrong_and_one_that_is_not(
    open_cells: Open, shot: Shot
) -> None:
    page, bench = opened(open_cells)
    has(bench, "card", "none")
    as_it_was = check(bench)
    has(bench, "card", "good")

    retype(bench, "y[i];", "2 * y[i];")
    assert text(bench) == SOURCE.replace("+= y[i];", "+= 2 * y[i];")
    has(bench, "dirty", "true")
    has(bench, "stale", "true")
    wrong = check(bench)
    has(bench, "card", "bad")
    assert wrong != as_it_was
    shot(page, "workbench-wrong")

    retype(bench, "2 * y[i];", "1.0f * y[i];")
    check(bench)
    has(bench, "card", "good")
    press(bench, "revert")
    has(bench, "dirty", "false")
    assert text(bench) == SOURCE


def test_a_broken_kernel_is_explained_on_its_line(open_cells: Open, shot: Shot) -> None:
    page, bench = opened(open_cells)
    for broken, about in (
        (SOURCE.replace(WORK, "if (i < n) x[i] += z[i];"), "z"),
        (SOURCE.replace(WORK, "x[i] += y[i];"), "out of bounds"),
    ):
        write(bench, broken)
        card = check(bench)
        has(bench, "card", "bad")
        assert f"line {WORK_LINE}" in card
        mark = bench.locator(".cm-lint-marker")
        assert mark.count() == 1
        mark.hover()
        told = page.locator(".cm-tooltip")
        told.wait_for()
        assert about in told.inner_text()
        shot(page, f"workbench-{about}")
        page.mouse.move(0, 0)


def test_an_endless_kernel_is_cancelled_and_the_workbench_goes_on(open_cells: Open) -> None:
    page, bench = opened(open_cells)
    write(bench, ENDLESS)
    press(bench, "check")
    has(bench, "action", "check")
    # The page and the notebook's kernel stay free meanwhile.
    bench.locator(".cm-line").first.click()
    page.keyboard.press("Home")
    page.keyboard.type("// ")
    assert text(bench) == "// " + ENDLESS
    press(bench, "cancel")
    has(bench, "busy", "false")
    assert "ancelled" in bench.get_by_test_id("workbench-status").inner_text()
    press(bench, "revert")
    check(bench)
    has(bench, "card", "good")


def test_two_workbenches_do_not_disturb_each_other(open_cells: Open, shot: Shot) -> None:
    page = open_cells(f"{CELLS[0]}\n{CELLS[1]}", 'sl.workbench("add", name="other")')
    run_all(page)
    first, second = workbench(page, 0), workbench(page, 1)
    write(first, SOURCE.replace("x[i] +=", "x[i] -="))
    press(first, "check")
    press(second, "check")
    for bench, card in ((first, "bad"), (second, "good")):
        has(bench, "busy", "false", SLOW)
        has(bench, "card", card)
    assert "-=" in text(first)
    assert text(second) == SOURCE
    shot(page, "workbench-two")


def test_a_restarted_kernel_leaves_a_way_back(open_cells: Open, shot: Shot) -> None:
    page, bench = opened(open_cells)
    mine = SOURCE.replace("+= y[i]", "+= 1.0f * y[i]")
    write(bench, mine)
    restart_kernel(page)
    has(bench, "alive", "false")
    notice = bench.get_by_test_id("workbench-restarted")
    assert "Run the cell" in notice.inner_text()
    assert text(bench) == mine
    assert bench.get_by_test_id("workbench-check").is_disabled()
    shot(page, "workbench-restarted")

    run_all(page)
    again = workbench(page)
    has(again, "alive", "true")
    press(again, "accept")
    assert text(again) == mine
    check(again)
    has(again, "card", "good")


def test_everything_goes_by_keyboard(open_cells: Open) -> None:
    page, bench = opened(open_cells)
    inside = "!!document.activeElement.closest('[data-testid=workbench-editor]')"
    bench.get_by_test_id("workbench-check").focus()
    presses = 0
    while not page.evaluate(inside):
        page.keyboard.press("Tab")
        presses += 1
        assert presses < 12, "Tab does not reach the editor"
    page.keyboard.press("Control+Home")
    page.keyboard.type("// mine\n")
    assert text(bench) == "// mine\n" + SOURCE
    page.keyboard.press("Control+Enter")
    has(bench, "busy", "false", SLOW)
    has(bench, "card", "good")
    assert page.evaluate(inside), "the check has taken the focus away"
    assert [cell.source for cell in code_cells(page)] == list(CELLS)

    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert not page.evaluate(inside), "Escape and Tab do not leave the editor"
    assert page.evaluate("!!document.activeElement.closest('[data-testid=workbench]')")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(inside)


def test_a_dark_page_and_a_narrow_one(open_cells: Open, shot: Shot) -> None:
    page, bench = opened(open_cells)
    try:
        use_theme(page, "JupyterLab Dark")
        has(bench, "theme", "dark")
        assert contrast(bench, ".cm-content") > 7
        assert contrast(bench, ".slw-keyword") > 3
        shot(page, "workbench-dark")
        page.set_viewport_size({"width": 480, "height": 900})
        page.keyboard.press("Control+b")
        shot(page, "workbench-narrow")
        wide = bench.evaluate("root => root.scrollWidth - root.clientWidth")
        assert wide <= 1, "the workbench is wider than its window"
        for name in ("check", "inspect", "time", "keep", "revert"):
            box = bench.get_by_test_id(f"workbench-{name}").bounding_box()
            assert box and box["x"] + box["width"] <= 480, name
    finally:
        use_theme(page, "JupyterLab Light")


def contrast(bench: Locator, selector: str) -> float:
    """WCAG's ratio of the text's luminance to that of what stands behind it."""
    found = bench.locator(selector).first.evaluate(
        """text => {
            const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
            let behind = text;
            while ((rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0)
                behind = behind.parentElement;
            return [getComputedStyle(text).color, getComputedStyle(behind).backgroundColor].map(rgb);
        }"""
    )
    light, dark = sorted((_luminance(colour[:3]) for colour in found), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
