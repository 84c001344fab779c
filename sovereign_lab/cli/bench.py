"""`sovereign-lab bench peer`: how far llama.cpp is ahead of ours, or behind, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sovereign_lab.cli.app import DeviceName, DeviceOption, ModelOption, app

bench_app = typer.Typer(help="Measure ours against others.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command()
def peer(
    model: ModelOption = None,
    device: DeviceOption = DeviceName.auto,
    phase: Annotated[
        list[str] | None, typer.Option(help="A phase of ours, 9c by default; may be repeated.")
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Decode from this position on; may be repeated."),
    ] = None,
    prompt: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Prefill a prompt of so many tokens; may be repeated."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens a measurement of decoding; 128 on a GPU by default, else 12."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=5, help="Measurements of each, in turn.")] = 7,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="llama.cpp's on the CPU; on a busy machine fewer can be faster."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--json", help="Keep the run in this file as JSON.")
    ] = None,
) -> None:
    """Measure llama.cpp and ours in turn on the same file: decode by context, prefill by length of prompt.

    It is the llama.cpp of `llama-cpp-python`, which the extra `peer` installs. Without --context and --prompt: several
    of each on a GPU, one on the SIMT device.
    """
    from tqdm import tqdm

    import sovereign_lab as sl
    from sovereign_lab.measure.peer import begin, llama_cpp, points, that_fit

    api = llama_cpp()
    opened = sl.open_device(device.value)
    loaded = sl.load_model(model, progress=True)
    on_gpu = opened.properties.kind == "cuda"
    decoded = tokens or (128 if on_gpu else 12)
    contexts, prompts = context or [], prompt or []
    if not contexts and not prompts:
        contexts, prompts = that_fit(loaded.config, decoded)
        if not on_gpu:
            contexts, prompts = contexts[:1], prompts[:1]
    phases = list(dict.fromkeys(phase or ["9c"]))
    run = begin(loaded, opened, api, decoded, threads)
    for notice in loaded.notices:
        print(f"ours: {notice}")
    print(run.heading, flush=True)
    measured = points(run, loaded, opened, api, phases, contexts, prompts, rounds, progress=True)
    total = len(phases) * (len(contexts) + len(prompts))
    for point in tqdm(measured, "peer", total, unit="point", leave=False):
        tqdm.write(str(point))
        run = run.with_point(point)
        if record is not None:  # after each, so that a run that is broken off keeps what it has
            run.write(record)
