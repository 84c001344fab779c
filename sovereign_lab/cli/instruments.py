"""`sovereign-lab trace`, `sanitize` and `static`: what a kernel does, with or without a GPU."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from sovereign_lab.cli.app import JSONOption, ModelOption, app


@app.command()
def trace(
    kernel: Annotated[str, typer.Argument(help="OP:VARIANT, as in gemv_q4_0:coalesced.")],
    model: ModelOption = None,
    position: Annotated[int, typer.Option(min=0, help="The position in the context.")] = 63,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Run and count about so many blocks of the launch.")
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Show what each line of a kernel does to memory, on any machine: counts, exact by address.

    Very large launches are sampled, and the output says so.
    """
    from sovereign_lab.notebook.microscope import inspect_kernel

    inspection = inspect_kernel(kernel, model, position=position, blocks=blocks)
    if as_json:
        print(json.dumps(inspection.record()))
    else:
        out = Console(highlight=False)
        if (
            not out.is_terminal
        ):  # a pipe has no width of its own; cutting the source there would lose it
            out.width = 160
        out.print(inspection)


@app.command()
def sanitize(
    kernel: Annotated[str, typer.Argument(metavar="OP:VARIANT", help="As gemv_q4_0:coalesced.")],
    seed: Annotated[int, typer.Option(help="Seeds the data of the shapes that it runs on.")] = 0,
    as_json: JSONOption = False,
) -> None:
    """Look for what a kernel does wrong, over odd shapes: bounds, races, barriers; 1 where it finds something."""
    import numpy as np

    from sovereign_lab.kernels.registry import find_kernel
    from sovereign_lab.measure.sanitizer.cases import kv_types, sanitize_variant

    op, variant = find_kernel(kernel)
    reports = []
    for kv in kv_types(variant):
        for report in sanitize_variant(op, variant, np.random.default_rng(seed), kv):
            reports.append(report)
            if not as_json:
                print(report, flush=True)
    if as_json:
        print(json.dumps({"kernel": kernel, "reports": [report.record() for report in reports]}))
    raise typer.Exit(1 if any(report.findings for report in reports) else 0)


@app.command()
def static(
    kernel: Annotated[str, typer.Argument(metavar="OP:VARIANT", help="As gemv_q4_0:coalesced.")],
    arch: Annotated[
        list[int] | None,
        typer.Option(help="A compute capability, as 90; may be repeated. All by default."),
    ] = None,
    sass: Annotated[
        int | None, typer.Option(help="Show the machine code for this one beside the source.")
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Compile a kernel for GPUs that need not be here: registers, spills, shared memory, occupancy and its limit."""
    from sovereign_lab.measure.static.analysis import static_analysis

    chosen = sorted({*(arch or []), *([] if sass is None else [sass])})
    report = static_analysis(kernel, archs=chosen or None)
    code = None if sass is None else report.sass(sass)
    if as_json:
        print(json.dumps(report.record() | ({"sass": code.record()} if code else {})))
    else:
        print(f"{report}\n\n{code}" if code else report)
