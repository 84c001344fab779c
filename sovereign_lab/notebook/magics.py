"""The magics: `%load_ext sovereign_lab`, then `%%kernel OP` in a cell of CUDA, `%kernels`, `%kernel_source`.

An edited kernel runs in a worker (measure/worker.py), so that the notebook survives whatever it does.
"""

from typing import Protocol

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS, op
from sovereign_lab.measure.mine import DEFAULT_PHASE, edit, find_variant, keep, kept
from sovereign_lab.measure.trial.attempt import Calls, attempt
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.worker import Worker
from sovereign_lab.notebook.card import CardView
from sovereign_lab.notebook.table import Table

FIRST_LINE = 2  # of a cell's body: the magic stands in line 1
TIME_LIMIT = 10.0
FLAGS = {
    "threads": "--threads",
    "rows_per_block": "--rows-per-block",
    "grid": "--grid",
    "shared_bytes": "--shared",
}


class Startable(Calls, Protocol):
    """What the magics need of a Worker."""

    def start(self) -> None:
        """See Worker.start."""


@magics_class
class LabMagics(Magics):
    """The lab's magics; `worker` runs the trials."""

    def __init__(self, shell: InteractiveShell | None, worker: Startable | None = None) -> None:
        super().__init__(shell)
        self.worker: Startable = Worker() if worker is None else worker

    @magic_arguments("%kernel")
    @argument("op", help="what the kernel computes: %%kernels lists the ops")
    @argument(
        "--from",
        dest="like",
        metavar="VARIANT",
        help="the kernel that it stands in for, by name or step (float4, 3): its launch applies, and it is the "
        "one to compare with; by default the one of phase 8b",
    )
    @argument(
        "--as",
        dest="name",
        metavar="NAME",
        default="mine",
        help="the name under which it is kept where it is right and safe; by default mine",
    )
    @argument("--threads", type=int, metavar="N", help="threads a block")
    @argument(
        "--rows-per-block", type=int, metavar="N", help="rows (elements, heads) that a block takes"
    )
    @argument(
        "--grid",
        type=int,
        metavar="G",
        help="a fixed number of blocks, in place of as many as cover the rows",
    )
    @argument("--shared", type=int, metavar="BYTES", help="dynamic shared memory a block")
    @argument("--cooperative", action="store_true", help="a cooperative launch, for grid.sync()")
    @argument(
        "--inspect", action="store_true", help="count requests and sectors, against the parent"
    )
    @argument("--time", action="store_true", help="time it alone, in turn with the parent")
    @argument(
        "--engine", action="store_true", help="time a model with it; compare logits and tokens"
    )
    @argument(
        "--model",
        help="whose size --inspect and --time take, and which model --engine runs; a name or a path",
    )
    @argument("--phase", help="the phase that --engine puts it into; by default 8b")
    @argument(
        "--time-limit",
        type=float,
        metavar="S",
        default=TIME_LIMIT,
        help="seconds that one launch may take before it is stopped; by default 10",
    )
    @cell_magic
    def kernel(self, line: str, cell: str) -> CardView:
        """Try an edited kernel: does it compile, is it safe, is it right, is it faster?

        The cell holds one CUDA kernel with the op's own signature; %kernel_source OP VARIANT puts one there to begin
        with. It runs in a process of its own, at odd shapes, with every array between canaries.
        """
        given = parse_argstring(self.kernel, line)
        launch = {
            "name": given.name, "threads": given.threads, "rows_per_block": given.rows_per_block,
            "grid": given.grid, "shared_bytes": given.shared, "cooperative": given.cooperative,
            "line": FIRST_LINE,
        }  # fmt: skip
        try:
            if given.time_limit <= 0:
                raise LabError(f"--time-limit is more than 0 seconds; got {given.time_limit:g}.")
            if given.phase is not None:
                PHASES.phase(given.phase)
            made = edit(given.op, cell, given.like, **launch)
            options = {
                **launch, "seconds": given.time_limit, "inspect": given.inspect, "time": given.time,
                "engine": given.engine, "model": given.model, "phase": given.phase,
            }  # fmt: skip
            card = attempt(self.worker, made, options, given.time_limit)
        except LabError as error:
            raise UsageError(str(error)) from None
        return CardView(card, _keep(card))

    @line_magic
    def kernels(self, line: str = "") -> Table:
        """List the kernels, those of one op where it is named: %kernels, %kernels gemv_q4_0."""
        try:
            chosen = [op(line.strip())] if line.strip() else list(OPS.values())
        except LabError as error:
            raise UsageError(str(error)) from None
        rows = []
        for found in chosen:
            default = PHASES[DEFAULT_PHASE].plan.get(found.name)
            for v in found.variants.values():
                size = f"{v.threads} threads"
                rows.append([found.name, v.name, v.path.stem.split("_")[0],
                             f"phase {DEFAULT_PHASE}" if v.name == default else "", size, v.teaches])  # fmt: skip
            rows += [
                [found.name, mine.name, "", "yours", f"{mine.variant().threads} threads", f"edited from {mine.like}"]
                for mine in kept() if mine.op == found.name
            ]  # fmt: skip
        return Table(["op", "variant", "step", "", "block", "teaches"], rows)

    @line_magic
    def kernel_source(self, line: str) -> None:
        """Open a kernel as a cell to edit: %kernel_source OP VARIANT; by default the variant of phase 8b."""
        words = line.split()
        try:
            if not 1 <= len(words) <= 2:
                raise LabError(f"%kernel_source takes an op and a variant; got {line!r}.")
            text = _cell(*words)
        except LabError as error:
            raise UsageError(str(error)) from None
        self.worker.start()  # it is soon to be needed
        assert self.shell is not None
        self.shell.set_next_input(text, replace=False)


def _keep(card: Card) -> str:
    """Keep the kernel of a good card, and say so."""
    made = card.edit
    if not card.good:
        return ""
    keep(made)
    return f"Kept as {made.op}:{made.name}."


def _cell(op_name: str, variant: str | None = None) -> str:
    """A cell with a kernel in it; of a kept one, with the launch that it had."""
    mine = {m.name: m for m in kept() if m.op == op_name}
    if variant in mine:
        found = mine[variant]
        like, source = found.like, found.source
        flags = [f"--as {found.name}"]
        flags += [f"{flag} {getattr(found, name)}" for name, flag in FLAGS.items()
                 if getattr(found, name) is not None]  # fmt: skip
        flags += ["--cooperative"] if found.cooperative else []
    else:
        like = find_variant(op(op_name), variant)
        source, flags = op(op_name).variant(like).source, []
    return " ".join(["%%kernel", op_name, "--from", like, *flags]) + "\n" + source


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Register the magics: IPython calls this for `%load_ext`."""
    ipython.register_magics(LabMagics(ipython))
