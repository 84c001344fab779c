"""`python -m sovereign_lab.notebook.execute FILE...`: run notebooks afresh and save them as they are committed.

Always on the SIMT device, since committed outputs are compared and some depend on the device. Progress bars are
taken out of the outputs, and so is everything that differs from run to run without meaning anything.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

# nbval compares what a renderer emits; this one is the same in every place where a notebook may be run.
ENVIRONMENT = {"SOVEREIGN_DEVICE": "simt", "PLOTLY_RENDERER": "plotly_mimetype"}


def execute(path: Path) -> None:
    """Execute the notebook at `path` in place. Raises nbclient's CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    # The version of whoever ran it last would make a diff of its own.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def main() -> None:
    """Execute the notebooks named on the command line."""
    os.environ.update(ENVIRONMENT)
    for name in tqdm(sys.argv[1:], "notebooks"):
        execute(Path(name))


if __name__ == "__main__":
    main()
