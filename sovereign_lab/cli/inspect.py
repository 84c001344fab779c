"""`sovereign-lab inspect`: what a GGUF file holds, and what a token of it costs."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sovereign_lab.cli.app import JSONOption, app, plain
from sovereign_lab.errors import LabError

if TYPE_CHECKING:
    from sovereign_lab.measure.roofline import TokenBytes
    from sovereign_lab.models.gguf_file import GGUFFile, TensorInfo
    from sovereign_lab.models.model import Config


@app.command()
def inspect(
    file: Annotated[str, typer.Argument(help="A GGUF file, or a name from `models list`.")],
    as_json: JSONOption = False,
) -> None:
    """Show what a GGUF file holds and, for a model that the lab can run, what a token costs.

    A file of another architecture is shown too, with the reason why the lab does not run it.
    """
    from sovereign_lab.models.catalog import resolve
    from sovereign_lab.models.gguf_file import open_gguf

    opened = open_gguf(resolve(file, progress=True))
    config, why_not = _config_or_reason(opened)
    if as_json:
        print(json.dumps(_inspection(opened, config, why_not), default=plain))
        return
    out = Console(highlight=False)
    out.print(
        f"[bold]{escape(str(opened.path))}[/bold]  {opened.path.stat().st_size / 1e6:,.1f} MB"
    )
    out.print(_metadata_table(opened))
    out.print(_tensor_table(opened))
    if config is None:
        out.print(f"Not run here: {escape(str(why_not))}", soft_wrap=True)
        return
    out.print(_config_table(config))
    for table in _cost_tables(opened, config):
        out.print(table)


def _config_or_reason(file: GGUFFile) -> tuple[Config, None] | tuple[None, str]:
    """The Config of a model whose costs can be told, or the reason why there is none."""
    from sovereign_lab.models.model import read_config

    try:
        config = read_config(file)
        _costs(file, config)
    except LabError as error:
        return None, str(error)
    return config, None


def _head(file: GGUFFile) -> TensorInfo:
    """The tensor that gives the logits: the embedding where there is no head of its own."""
    tied = "output.weight" not in file.tensors
    return file.info("token_embd.weight" if tied else "output.weight")


def _costs(file: GGUFFile, config: Config) -> dict[str, TokenBytes]:
    """Bytes a token by the head's type: FP32, as the seed's phases keep it, and as in the file."""
    from gguf import GGMLQuantizationType

    from sovereign_lab.measure.roofline import token_bytes

    types = {GGMLQuantizationType.F32, _head(file).type}
    return {type.name: token_bytes(config, type) for type in sorted(types)}


def _inspection(file: GGUFFile, config: Config | None, why_not: str | None) -> dict[str, Any]:
    """The whole inspection as plain values; sizes in bytes, floors in ms and tokens/s.

    Without a config there are no costs, and `why_not` says why. Of a long array of metadata, the
    length is told.
    """
    from sovereign_lab.measure.roofline import GPUS, floor

    costs = {} if config is None else _costs(file, config)
    return {
        "path": str(file.path),
        "bytes": file.path.stat().st_size,
        "architecture": file.metadata.get("general.architecture"),
        "config": None if config is None else asdict(config),
        "why_not_run": why_not,
        "metadata": {
            key: f"{len(value)} values" if _is_long(value) else _json_value(value)
            for key, value in file.metadata.items()
        },
        "tensors": [
            {"name": t.name, "type": t.type.name, "shape": t.shape, "bytes": t.nbytes}
            for t in file.tensors.values()
        ],
        "token_bytes": {head: asdict(cost) for head, cost in costs.items()},
        "floors": [
            {"gpu": gpu.name, "gb_per_second": gpu.bandwidth, "origin": gpu.origin, "head": head}
            | {"ms": least.ms, "tokens_per_second": least.tokens_per_second}
            for gpu in GPUS
            for head, cost in costs.items()
            for least in [floor(cost.at(0), gpu)]
        ],
    }


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 8


def _json_value(value: Any) -> Any:
    """A metadata value as JSON has it: infinities and NaN have no number there."""
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _metadata_table(file: GGUFFile) -> Table:
    """Every metadata value on a line of its own, long ones shortened."""
    table = Table(title=f"{len(file.metadata)} metadata values", title_justify="left")
    for heading in ("key", "type", "value"):
        table.add_column(heading, overflow="fold")
    for key, value in file.metadata.items():
        type, element = file.value_types[key]
        name = type.name if element is None else f"{element.name}[{len(value)}]"
        # ascii() and not the text itself: control characters of a stranger's file stay out of the
        # terminal.
        shown = reprlib.repr(value) if not isinstance(value, str) else ascii(value[:100])
        table.add_row(escape(ascii(key)[1:-1]), name.lower(), escape(shown))
    return table


def _tensor_table(file: GGUFFile) -> Table:
    """One row for each kind of tensor: the same name in every layer counts as one kind."""
    kinds: dict[tuple[str, str, tuple[int, ...]], list[TensorInfo]] = {}
    for tensor in file.tensors.values():
        kind = re.sub(r"^blk\.\d+\.", "blk.N.", tensor.name)
        kinds.setdefault((kind, tensor.type.name, tensor.shape), []).append(tensor)
    table = Table(title=f"{len(file.tensors)} tensors", title_justify="left")
    for heading in ("name", "type"):
        table.add_column(heading)
    for heading in ("shape", "count", "MB"):
        table.add_column(heading, justify="right")
    for (kind, type, shape), tensors in kinds.items():
        megabytes = sum(tensor.nbytes for tensor in tensors) / 1e6
        size = " x ".join(map(str, shape))
        table.add_row(escape(kind), type, size, str(len(tensors)), f"{megabytes:,.3f}")
    return table


def _config_table(config: Config) -> Table:
    table = Table(title="Config", title_justify="left", show_header=False)
    for name, value in asdict(config).items():
        table.add_row(name, escape(f"{value:g}" if isinstance(value, float) else str(value)))
    return table


def _cost_tables(file: GGUFFile, config: Config) -> Iterator[Table]:
    """Bytes a token, and the floor they set on each GPU of the roofline's table."""
    from sovereign_lab.measure.roofline import GPUS, floor

    costs = _costs(file, config)
    table = Table(title="Bytes a token at batch 1 (counted), MB", title_justify="left")
    table.add_column("head as")
    for heading in ("layers, Q4_0", "head", "sum", "KV of 1,000 positions, fp16"):
        table.add_column(heading, justify="right")
    for head, cost in costs.items():
        figures = (cost.layers, cost.head, cost.at(0), 1000 * cost.kv_per_position)
        table.add_row(head, *(f"{nbytes / 1e6:,.1f}" for nbytes in figures))
    yield table

    table = Table(
        title="Floor by the head's type (modelled: bytes / bandwidth; empty KV cache)",
        title_justify="left",
    )
    table.add_column("GPU")
    table.add_column("GB/s", justify="right")
    for head in costs:
        table.add_column(f"ms ({head})", justify="right")
        table.add_column("tokens/s", justify="right")
    table.add_column("from")
    for gpu in GPUS:
        cells = []
        for cost in costs.values():
            least = floor(cost.at(0), gpu)
            cells += [f"{least.ms:.3g}", f"{least.tokens_per_second:,.0f}"]
        table.add_row(gpu.name, f"{gpu.bandwidth:,.0f}", *cells, gpu.origin)
    yield table
