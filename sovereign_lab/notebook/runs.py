"""Runs that were recorded on some GPU and lie under data/runs/: a figure with its machine and its date."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sovereign_lab.devices import Properties
from sovereign_lab.engine import PHASES
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.ladder import LadderRun
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table

NO_FIGURE = "no figure"


# On an H200: every phase at seven contexts with tokens drawn, and at two with the likeliest.
SAMPLED_LADDER = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-sampled-ladder"
GREEDY_LADDER = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-greedy-ladder"


@dataclass(frozen=True)
class Run:
    """A recorded run: where, when, on which model, and its figures by what they measure."""

    device: str
    date: str
    model: str
    environment: Mapping[str, str]
    figures: Mapping[str, Figure]

    @property
    def origin(self) -> str:
        """ "NVIDIA H200, recorded 2026-11-30"."""
        return f"{self.device}, recorded {self.date}"

    def value(self, what: str) -> float:
        """The median of a figure; KeyError where the run has none of this name."""
        return self.figures[what].value

    def ladder(self) -> dict[str, float]:
        """Decode speed by phase, tok/s."""
        found = {}
        for figure in self.figures.values():
            match = re.search(r"phase (\w+), decode$", figure.what)
            if match:
                found[match.group(1)] = figure.value
        return found


def recorded_run(name: str) -> Run:
    """A run by its file's name under data/runs/, without ".json". Raises LabError where there is none."""
    content = json.loads(in_checkout(f"data/runs/{name}.json").read_text())
    facts = content["environment"]
    known = Figure.__dataclass_fields__
    figures = [Figure(**{k: v for k, v in f.items() if k in known}) for f in content["figures"]]
    return Run(
        facts["device"], facts["date"], content["model"], facts, {f.what: f for f in figures}
    )


def recorded_ladder(name: str = SAMPLED_LADDER) -> LadderRun:
    """A recorded ladder by its file's name under data/runs/, without ".json". Raises LabError where there is none."""
    return LadderRun.read(in_checkout(f"data/runs/{name}.json"))


def here(device: Properties) -> str:
    """How this machine is named above its figures: never so that a CPU's time could pass for a GPU's."""
    return (
        "this machine: a CPU imitating a GPU"
        if device.kind == "simt"
        else f"this machine: {device.name}"
    )


def three_columns(
    phases: tuple[str, str], run: Run, measured: Mapping[str, float], model: str, device: Properties
) -> Table:
    """Two phases on the seed's GPU, in a recorded run, and here; `measured` is phase -> tok/s of `model` here.

    A phase to which the seed's log gives no speed is told so, and its ratio with it.
    """
    seed = {i: PHASES[i].seed_tokens_per_second for i in phases}
    columns: list[tuple[str, str, Mapping[str, float | None]]] = [
        (f"{GPU_NAME}, the seed's log", TINYLLAMA.name, seed),
        (run.origin, run.model, dict(run.ladder())),
        (here(device), model, dict(measured)),
    ]
    before, after = phases
    rows = [["model", *(name for _, name, _ in columns)]]
    for phase in phases:
        speeds = [rates[phase] for _, _, rates in columns]
        rows.append([f"phase {phase}", *(f"{r:.2f} tok/s" if r else NO_FIGURE for r in speeds)])
        rows.append(["", *(f"{1e3 / r:.2f} ms" if r else "" for r in speeds)])
    pairs = [(rates[before], rates[after]) for _, _, rates in columns]
    rows.append(
        [
            f"{after} over {before}",
            *(f"{b / a:.2f} times as fast" if a and b else NO_FIGURE for a, b in pairs),
        ]
    )
    return Table(["", *(name for name, _, _ in columns)], rows)
