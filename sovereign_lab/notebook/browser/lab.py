"""What a person does in JupyterLab, one function a step: open a notebook, run it, look at its cells."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sovereign_lab.errors import LabError
from sovereign_lab.notebook.browser.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

# How long a step may take on a busy machine before it counts as stuck, in seconds.
PATIENCE = 240
NOTEBOOK = "jupyterapp.shell.currentWidget"


@dataclass(frozen=True)
class CodeCell:
    """One code cell: its source, the number of its last execution, its outputs as nbformat has them."""

    source: str
    count: int | None
    outputs: tuple[dict[str, Any], ...]

    @property
    def error(self) -> str | None:
        """Name and sentence of the error that the cell ended with, if it did."""
        found = (o for o in self.outputs if o["output_type"] == "error")
        return next((f"{o['ename']}: {o['evalue']}" for o in found), None)


def open_notebook(page: "Page", server: Server, notebook: str) -> None:
    """Open `notebook`, relative to the server's folder, and wait for a kernel that is ready."""
    page.goto(server.page(notebook, f"w{uuid4().hex}"), timeout=PATIENCE * 1e3)
    wait_for(page, f"window.jupyterapp && {NOTEBOOK}?.context?.isReady")
    wait_for_kernel(page)


def wait_for(page: "Page", condition: str, seconds: float = PATIENCE) -> None:
    """Wait until a JavaScript expression holds. Raises Playwright's TimeoutError where it does not in time."""
    page.wait_for_function(condition, timeout=seconds * 1e3)


def wait_for_kernel(page: "Page") -> None:
    """Wait until the open notebook's kernel has nothing to do."""
    wait_for(page, f"{NOTEBOOK}.sessionContext?.session?.kernel?.status === 'idle'")


def command(page: "Page", name: str, seconds: float = PATIENCE, **arguments: Any) -> None:
    """Run one of JupyterLab's commands, those of its menus. Raises LabError where it takes longer than `seconds`."""
    done = page.evaluate(
        """async ([name, args, ms]) => {
            const late = new Promise(resolve => setTimeout(resolve, ms, "late"));
            return await Promise.race([late, jupyterapp.commands.execute(name, args)]) !== "late";
        }""",
        [name, arguments, seconds * 1e3],
    )
    if not done:
        raise LabError(f"JupyterLab's {name} was not done after {seconds:.0f} s.")


def run_all(page: "Page", seconds: float = PATIENCE) -> None:
    """Run every cell of the open notebook, and wait for the last. Raises LabError after `seconds`."""
    command(page, "notebook:run-all-cells", seconds)


def restart_kernel(page: "Page") -> None:
    """Restart the open notebook's kernel by the toolbar's button, and wait until it is ready again."""
    page.locator('jp-button[data-command="notebook:restart-kernel"]').click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.locator(".jp-Dialog").wait_for(state="detached")
    wait_for_kernel(page)


def code_cells(page: "Page") -> list[CodeCell]:
    """The code cells of the open notebook, drawn or not."""
    cells = page.evaluate(f"{NOTEBOOK}.content.model.sharedModel.toJSON().cells")
    return [
        CodeCell(c["source"], c["execution_count"], tuple(c["outputs"]))
        for c in cells
        if c["cell_type"] == "code"
    ]


def show_cell(page: "Page", number: int) -> None:
    """Scroll to a cell, counted from 0; JupyterLab draws only those in view."""
    page.evaluate(f"{NOTEBOOK}.content.scrollToItem({number}, 'start')")


def use_theme(page: "Page", theme: str) -> None:
    """Change to "JupyterLab Light" or "JupyterLab Dark", for all pages of the server from now on."""
    command(page, "apputils:change-theme", theme=theme)
    wait_for(page, f"document.body.dataset.jpThemeName === '{theme}'")
    page.locator("#jupyterlab-splash").wait_for(state="detached")
