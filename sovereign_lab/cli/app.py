"""What all commands share: the application, options that several take, and how a value becomes JSON."""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="sovereign-lab",
    help="Optimise a real LLM inference engine, CUDA kernel by CUDA kernel, on any machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
models_app = typer.Typer(help="List, fetch and make model files.", no_args_is_help=True)
app.add_typer(models_app, name="models")
notebooks_app = typer.Typer(help="A learner's own copies of the notebooks.", no_args_is_help=True)
app.add_typer(notebooks_app, name="notebooks")

debug_wanted: ContextVar[bool] = ContextVar("debug", default=False)


class DeviceName(StrEnum):
    """Where kernels run; `auto` is a CUDA GPU where one can be used, else the SIMT device."""

    auto = "auto"
    simt = "simt"
    cuda = "cuda"


ModelOption = Annotated[
    str | None, typer.Option(help="A name from `models list`, or the path of a GGUF file.")
]
DeviceOption = Annotated[
    DeviceName, typer.Option(envvar="SOVEREIGN_DEVICE", help="Where the kernels run.")
]
JSONOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""
    debug_wanted.set(debug)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, for json."""
    return value.item()
