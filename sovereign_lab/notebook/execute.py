"""`python -m sovereign_lab.notebook.execute FILE...`: run notebooks afresh and save them as they are committed.

Always on the SIMT device, since committed outputs are compared and some depend on the device. Progress bars are
taken out of the outputs, and so is everything that differs from run to run without meaning anything. Beside every
figure goes a picture of it (`pip install kaleido`, and Chromium), for readers whose page runs no scripts. Of a widget
its stand-in is kept alone: its kernel is gone.
"""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import plotly.graph_objects as go
from nbclient import NotebookClient
from tqdm import tqdm

FIGURE, PICTURE = "application/vnd.plotly.v1+json", "image/png"
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDTH = 800  # pixels, where a figure does not say
# nbval compares what a renderer emits; this one is the same in every place where a notebook may be run.
ENVIRONMENT = {"SOVEREIGN_DEVICE": "simt", "PLOTLY_RENDERER": "plotly_mimetype"}


def executed(path: Path) -> Any:
    """The notebook at `path`, executed in this environment. Raises nbclient's CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    return client.execute()


def execute(path: Path) -> None:
    """Execute the notebook at `path` in place, as it is to be committed; raises what `executed` does."""
    notebook = executed(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                _add_picture(output.get("data", {}))
                output.get("data", {}).pop(WIDGET, None)
    notebook.metadata.pop("widgets", None)
    # The version of whoever ran it last would make a diff of its own.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def _add_picture(data: dict[str, Any]) -> None:
    """Put a picture beside the figure of an output, if it has one."""
    if FIGURE not in data:
        return
    figure = go.Figure({part: data[FIGURE][part] for part in ("data", "layout")})
    png = figure.to_image("png", width=figure.layout.width or WIDTH)
    data[PICTURE] = base64.b64encode(png).decode()


def main() -> None:
    """Execute the notebooks named on the command line."""
    os.environ.update(ENVIRONMENT)
    for name in tqdm(sys.argv[1:], "notebooks"):
        execute(Path(name))


if __name__ == "__main__":
    main()
