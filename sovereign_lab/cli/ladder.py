"""`sovereign-lab ladder`: every phase measured, with its gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sovereign_lab.cli.app import DeviceName, DeviceOption, ModelOption, app


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

    Decoding is timed, and nothing else: phase 9c, which is about prompts, decodes as 9b does.

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
    width = 2 + max(len(sl.PHASES.phase(p).title) for p in chosen)
    sampling = Sampling() if greedy else Sampling(temperature=0.8, top_p=0.95)
    engine = sl.Engine(loaded, opened, phase=sl.PHASES.phase(chosen[0]).id, progress=True)
    print(f"{loaded.config.name} on {opened.properties.name}: {opened.properties.times}")
    print(f"{'phase':<7}{'':<{width}}{'context':>8}{'ms':>10}{'tok/s':>10}{'gain':>8}{'seed':>8}")
    rungs = []
    climbing = climb(engine, chosen, contexts, tokens, repeats, sampling)
    for rung in tqdm(climbing, "ladder", len(chosen) * len(contexts), unit="rung", leave=False):
        gain, seed = (f"{g:.2f}" if g else "" for g in (rung.gain, rung.seed_gain))
        tqdm.write(
            f"{rung.phase:<7}{rung.title:<{width}}{rung.context:>8}{rung.ms_per_forward:>10.4g}"
            f"{rung.tokens_per_second:>10.4g}{gain:>8}{seed:>8}"
        )
        rungs.append(rung)
        if record is not None:  # after each, so that a run that is broken off keeps what it has
            LadderRun(environment(opened), loaded.config.name, sampling, tuple(rungs)).write(record)
