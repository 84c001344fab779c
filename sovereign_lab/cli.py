"""The command `sovereign-lab`: generate text, look at the machine and at model files, manage these.

Results go to stdout, everything about them (progress, notices, figures) to stderr, so that a pipe
gets the text or the JSON object and nothing else. The rooms are imported inside the commands: help
is instant, and a command needs only what it uses.
"""

from __future__ import annotations

import errno
import json
import math
import re
import reprlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sovereign_lab.errors import LabError

if TYPE_CHECKING:
    from sovereign_lab.devices.device import Properties
    from sovereign_lab.engine import Generation
    from sovereign_lab.measure.roofline import TokenBytes
    from sovereign_lab.models.gguf_file import GGUFFile, TensorInfo
    from sovereign_lab.models.model import Config

DEFAULT_PROMPT = "Once upon a time, there was a little fox named Tom."

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

_debug: ContextVar[bool] = ContextVar("debug", default=False)


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
    _debug.set(debug)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")] = DEFAULT_PROMPT,
    model: ModelOption = None,
    device: DeviceOption = DeviceName.auto,
    phase: Annotated[str, typer.Option(help="The step of the optimisation ladder.")] = "8b",
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seeds sampling when the temperature is above 0.")] = 0,
    top_k: Annotated[
        int, typer.Option(help="Draw from so many of the likeliest tokens; 0: all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that sum to this probability.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Draw from tokens at least so likely against the likeliest.")
    ] = 0.0,
    repeat_penalty: Annotated[
        float, typer.Option(help="Above 1, the last 64 tokens are less likely to come again.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; may be repeated.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="PROMPT is a message, put into the model's template.")
    ] = False,
    check: Annotated[
        bool, typer.Option(help="Compare every token's argmax with the NumPy reference afterwards.")
    ] = True,
    as_json: JSONOption = False,
) -> None:
    """Generate text from PROMPT with the lab's own CUDA kernels."""
    import sovereign_lab as sl

    facts = Console(stderr=True, highlight=False)
    opened = sl.open_device(device.value)
    loaded = sl.load_model(model, progress=True)
    for notice in loaded.notices:
        facts.print(escape(notice), style="dim")
    engine = sl.Engine(loaded, opened, phase=phase, progress=True)

    if chat:
        prompt = engine.chat_prompt([{"role": "user", "content": prompt}])
    stream = engine.stream(
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop or (),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
    )
    if as_json:
        for _ in stream:
            pass
    else:
        facts.print(f"\n[bold]{escape(prompt)}[/bold]", end="", soft_wrap=True)
        _write_through(stream)
    generation = stream.result
    agreement = engine.agreement(generation) if check else None

    record = {
        "text": generation.text,
        "token_ids": generation.token_ids,
        "tokens_per_second": generation.tokens_per_second,
        "prefill_tokens_per_second": generation.prefill_tokens_per_second,
        "ms_per_forward": generation.ms_per_forward,
        "device": f"{opened.properties.kind}: {opened.properties.name}",
        "phase": phase,
        "model": loaded.config.name,
        "agreement": agreement,
        "finish_reason": generation.finish_reason,
        "stop": generation.stop,
    }
    if as_json:
        print(json.dumps(record, ensure_ascii=False, default=_plain))
    else:
        facts.print(_run_summary(record, generation, opened.properties))


def _write_through(pieces: Iterator[str]) -> None:
    """Each piece on stdout as soon as it is there; a newline at the end, also of a broken one."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:
        print(flush=True)


def _run_summary(record: dict[str, Any], generation: Generation, device: Properties) -> Table:
    """What was generated, how fast, on what, and whether to trust it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left")
    reasons = {
        "stop": "the model ended its text"
        if generation.stop is None
        else f"the stop string {generation.stop!r} came up",
        "length": "the limit of --max-tokens was reached",
        "context": "the model's context is full",
    }
    tokens = len(generation.token_ids)
    rows = [
        (
            "tokens",
            f"{len(generation.prompt_ids)} in the prompt, {tokens} generated; "
            f"{reasons.get(generation.finish_reason, generation.finish_reason)}",
        ),
        ("decode", f"{_figure(record['tokens_per_second'])} tokens/s"),
        ("prefill", f"{_figure(record['prefill_tokens_per_second'])} tokens/s"),
        ("forward pass", f"{_figure(record['ms_per_forward'])} ms"),
        ("device", record["device"]),
        ("its times", device.times),
        ("phase", record["phase"]),
        ("model", record["model"]),
    ]
    if record["agreement"] is not None:
        rows.append(
            (
                "agreement",
                f"{record['agreement']:.1%} of {tokens} positions have the argmax of the "
                "NumPy reference",
            )
        )
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(str(value)))
    return table


def _figure(value: float | None) -> str:
    """Three significant digits, or a dash where too few tokens were made to tell."""
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


@app.command()
def ladder(
    model: ModelOption = None,
    device: DeviceOption = DeviceName.auto,
    phases: Annotated[
        str, typer.Option(help="Phases, with commas between; all that are about speed by default.")
    ] = "",
    context: Annotated[
        list[int] | None, typer.Option(help="The position to decode at; may be repeated.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Forward passes a measurement.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements; their median counts.")] = 5,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="The likeliest token always, in place of sampling.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--json", help="Keep the run in this file as JSON.")
    ] = None,
) -> None:
    """Measure every phase of the ladder, and show the gain of each over its base.

    Tokens are drawn at temperature 0.8 and top-p 0.95 from a fixed seed, since one of the phases is about that.
    """
    from tqdm import tqdm

    import sovereign_lab as sl
    from sovereign_lab.engine.sampling import Sampling
    from sovereign_lab.measure.environment import environment
    from sovereign_lab.measure.ladder import LadderRun, climb

    opened = sl.open_device(device.value)
    loaded = sl.load_model(model, progress=True)
    chosen = [p.strip() for p in phases.split(",") if p.strip()] or sl.PHASES.timed()
    contexts = context or [16]
    sampling = Sampling() if greedy else Sampling(temperature=0.8, top_p=0.95)
    engine = sl.Engine(loaded, opened, phase=sl.PHASES.phase(chosen[0]).id, progress=True)
    print(f"{loaded.config.name} on {opened.properties.name}: {opened.properties.times}")
    print(f"{'phase':<7}{'':<34}{'context':>8}{'ms':>10}{'tok/s':>10}{'gain':>8}{'seed':>8}")
    rungs = []
    climbing = climb(engine, chosen, contexts, tokens, repeats, sampling)
    for rung in tqdm(climbing, "ladder", len(chosen) * len(contexts), unit="rung", leave=False):
        gain, seed = (f"{g:.2f}" if g else "" for g in (rung.gain, rung.seed_gain))
        tqdm.write(
            f"{rung.phase:<7}{rung.title:<34}{rung.context:>8}{rung.ms_per_forward:>10.4g}"
            f"{rung.tokens_per_second:>10.4g}{gain:>8}{seed:>8}"
        )
        rungs.append(rung)
    if record is not None:
        LadderRun(environment(opened), loaded.config.name, sampling, tuple(rungs)).write(record)


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
def doctor(as_json: JSONOption = False) -> None:
    """Show what of this machine the lab can use, and what to do about the rest; 1 where it cannot run."""
    from sovereign_lab.checkup import doctor

    report = doctor()
    if as_json:
        print(json.dumps(report.record()))
    else:
        Console(highlight=False).print(report)
    raise typer.Exit(0 if report.ok else 1)


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
        print(json.dumps(_inspection(opened, config, why_not), default=_plain))
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

    report = static_analysis(kernel, archs=arch or (None if sass is None else [sass]))
    code = None if sass is None else report.sass(sass)
    if as_json:
        print(json.dumps(report.record() | ({"sass": code.record()} if code else {})))
    else:
        print(f"{report}\n\n{code}" if code else report)


@models_app.command("list")
def list_models() -> None:
    """Show the catalog, and which of its files are on this machine."""
    from sovereign_lab.models.catalog import DEFAULT, cache_dir, entries

    table = Table(caption=f"cache: {cache_dir()}", caption_justify="left")
    for heading in ("name", "what", "from", "here"):
        table.add_column(heading, overflow="fold")
    for entry in entries():
        name = f"{entry.name} (default)" if entry.name == DEFAULT else entry.name
        here = "yes" if entry.present else "no"
        table.add_row(escape(name), escape(entry.description), escape(entry.where), here)
    Console(highlight=False).print(table)


@models_app.command()
def pull(name: Annotated[str, typer.Argument(help="A name from `models list`.")]) -> None:
    """Put a model's file into the cache and print its path."""
    from sovereign_lab.models.catalog import resolve

    print(resolve(name, progress=True))


@models_app.command()
def synth(
    name: Annotated[str, typer.Argument(help="A shape, with or without `synthetic:` before it.")],
) -> None:
    """Write a model of true shape and random weights into the cache and print its path."""
    from sovereign_lab.models.catalog import resolve

    print(resolve(f"synthetic:{name.removeprefix('synthetic:')}", progress=True))


OutputsOption = Annotated[
    bool, typer.Option("--outputs", help="With the outputs, which give the answers away.")
]


@notebooks_app.command("copy")
def copy_notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; it is made.")],
    chapter: Annotated[
        list[str] | None, typer.Option(help="A chapter, such as 05; may be repeated.")
    ] = None,
    outputs: OutputsOption = False,
) -> None:
    """Copy the notebooks, all or some, as they were before anybody ran them; what is there already stays."""
    from sovereign_lab.notebook import copies

    copied = copies.copy_notebooks(folder, chapter or [], outputs)
    for path in copied.made:
        print(path)
    if copied.kept:
        names = ", ".join(path.name for path in copied.kept)
        facts = Console(stderr=True, highlight=False)
        facts.print(f"there already, and left as they are: {escape(names)}")


@notebooks_app.command("reset")
def reset_notebook(
    notebook: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `copy` made.")],
    outputs: OutputsOption = False,
) -> None:
    """Put a fresh copy in place of a notebook; the learner's own is kept beside it."""
    from sovereign_lab.notebook import copies

    mine = copies.reset_notebook(notebook, outputs)
    print(f"{notebook} is fresh again; what was in it is now {mine}")


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, for json."""
    return value.item()


def _sentence(error: Exception) -> str:
    """The error as one sentence that says what to do."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" while writing {error.filename}" if error.filename else ""
        return f"the disk is full{where}; free some space or point XDG_CACHE_HOME to another disk"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "this machine has too little memory for that; try a smaller model"
    return str(error)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line (sys.argv by default) and return the exit status.

    An error that a person can act on is told in one sentence; with --debug it is raised.
    """
    try:
        app(arguments)
    except SystemExit as end:
        if end.code == 130:
            print("\nInterrupted.", file=sys.stderr)
        return end.code if isinstance(end.code, int) else 0
    except (LabError, OSError, MemoryError) as error:
        if _debug.get():
            raise
        print(f"error: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0
