"""The kernel workbench: an editor in the page with a kernel in it, and buttons that say whether it is right and fast.

    sl.workbench("gemv_q4_0")

`bench` does all of it without a page; `page` and `picture` say what is seen of it; `widget` is the page, whose script
is made from `js/` by `make widgets` and lies ready in `static/`.
"""

from sovereign_lab.notebook.workbench.bench import Bench
from sovereign_lab.notebook.workbench.widget import Workbench

__all__ = ["Bench", "Workbench", "workbench"]


def workbench(
    op: str = "gemv_q4_0",
    variant: str | None = None,
    model: str | None = None,
    *,
    name: str = "mine",
    threads: int | None = None,
    rows_per_block: int | None = None,
    phase: str | None = None,
    device: str = "auto",
) -> Workbench:
    """A page in which a kernel of op `op` is edited, checked, inspected, timed and kept.

    It begins with `variant` (a name, a step, or a kept kernel of yours), by default the one of phase 8b. `model`: whose
    size Inspect and Time take, and which one runs where Time has a prediction. `name`: under which Keep keeps it.
    `threads` and `rows_per_block` replace the variant's launch. `phase`: where a kernel with a prediction is timed.
    `device`: as for open_device. Its `bench` does the same without a page. Raises LabError for what cannot be.
    """
    bench = Bench(
        op, variant, model, name=name, threads=threads, rows_per_block=rows_per_block, phase=phase,
        device=device,
    )  # fmt: skip
    return Workbench(bench)
