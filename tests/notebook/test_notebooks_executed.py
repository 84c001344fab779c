"""The committed notebooks are executed ones, fit for nbval, and name no machine.

nbval compares only cells that have an execution count, so a cell that was never run would pass.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.rglob("*.ipynb"))
MOST_BYTES = 2_000_000

every_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=[str(path.relative_to(FOLDER)) for path in NOTEBOOKS]
)


def code_cells(path: Path) -> list[Any]:
    """The code cells of a notebook, which must be valid for the notebook format's schema."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@every_notebook
def test_every_code_cell_was_executed_in_order(path: Path) -> None:
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts, "a notebook without code teaches nothing here"
    assert counts == list(range(1, len(counts) + 1)), "run all cells from a fresh kernel, then save"


@every_notebook
def test_no_cell_ended_in_an_error(path: Path) -> None:
    for cell in code_cells(path):
        if "raises-exception" in cell.metadata.get("tags", []):
            continue
        for output in cell.outputs:
            assert output.output_type != "error", f"{output.ename} in: {cell.source[:80]}"


@every_notebook
def test_cells_are_short(path: Path) -> None:
    """Logic belongs in the package; kernel code, in cells with a magic or in a text, may be longer."""
    for cell in code_cells(path):
        python = re.sub(r'"""\\.*?"""', '""', cell.source, flags=re.DOTALL)
        lines = [line for line in python.splitlines() if line.strip()]
        if not cell.source.startswith("%%"):
            assert len(lines) <= 15, f"{len(lines)} lines of Python: {cell.source[:80]}"


@every_notebook
def test_every_figure_has_a_picture_for_pages_without_scripts(path: Path) -> None:
    for cell in code_cells(path):
        for data in (output.get("data", {}) for output in cell.outputs):
            if "application/vnd.plotly.v1+json" in data:
                assert "image/png" in data, (
                    f"no picture: {cell.source[:80]}; see notebook/execute.py"
                )


@every_notebook
def test_kernelspec_is_the_one_that_every_environment_has(path: Path) -> None:
    assert nbformat.read(path, as_version=4).metadata.kernelspec.name == "python3"


@every_notebook
def test_outputs_name_no_folder_of_the_author(path: Path) -> None:
    # Without pictures, whose letters are random.
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    found = re.search(r"/(home|root|Users|work|tmp)/[\w.-]+", text)
    assert found is None, f"{found and found.group()} stands in {path.name}"


@every_notebook
def test_notebook_is_small(path: Path) -> None:
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{size} bytes; outputs of this size make every diff unreadable"
