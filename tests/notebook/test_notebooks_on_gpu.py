"""Every notebook runs on a GPU too, with live timings. Nothing is compared: what it prints depends on the GPU."""

from pathlib import Path

import pytest

from sovereign_lab.notebook.copies import originals
from sovereign_lab.notebook.execute import executed


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chapter", originals())
def test_notebook_runs(chapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOVEREIGN_DEVICE", "cuda")
    monkeypatch.setenv("PLOTLY_RENDERER", "plotly_mimetype")
    path: Path = originals()[chapter]
    cells = [cell for cell in executed(path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
