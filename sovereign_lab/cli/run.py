"""`sovereign-lab run`: text from a model, and how fast it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sovereign_lab.cli.app import DeviceName, DeviceOption, JSONOption, ModelOption, app, plain

if TYPE_CHECKING:
    from sovereign_lab.devices.device import Properties
    from sovereign_lab.engine import Generation

DEFAULT_PROMPT = "Once upon a time, there was a little fox named Tom."


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
        print(json.dumps(record, ensure_ascii=False, default=plain))
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
