"""The chapter's own kernels on a GPU: `python -m sovereign_lab.notebook.open_bench_times FILE` times and records them.

Each is timed in turn with its parent, alone and in a model of TinyLlama's shape at phase 8c.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sovereign_lab.devices import open_device
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.mine import Edit, edit
from sovereign_lab.measure.trial import trial
from sovereign_lab.notebook.challenges import CHALLENGES, MODEL, Challenge
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.table import Table

CHAPTER = "notebooks/14_the_open_bench.ipynb"
RECORDED = "2026-12-01-sm_90-open-bench"
PHASE = "8c"


def chapter_edits() -> list[Edit]:
    """The kernels of the chapter's own `%%kernel` cells, and those that solve its challenges: gold_1 to gold_5."""
    cells = json.loads(in_checkout(CHAPTER).read_text(encoding="utf-8"))["cells"]
    made = []
    for cell in cells:
        head, _, source = "".join(cell["source"]).partition("\n")
        match = re.match(r"%%kernel (\w+) --from (\w+) --as (\w+)", head)
        if cell["cell_type"] == "code" and match:
            made.append(edit(match[1], source, match[2], name=match[3]))
    return [*made, *(gold(challenge) for challenge in CHALLENGES.values())]


def gold(challenge: Challenge) -> Edit:
    """The kernel under notebooks/solutions/: what that file hands to `check`."""
    text = in_checkout(f"notebooks/solutions/{challenge.id.replace('.', '_')}.py").read_text()
    answers: list[Any] = []
    own_check = {"check": lambda _, answer: answers.append(answer)}
    exec(re.sub(r"from \S+exercises import check\n", "", text), own_check)
    given = answers[0]
    launch = {"rows_per_block": given.rows_per_block} if isinstance(given, Edit) else {}
    source = given.source if isinstance(given, Edit) else given
    return edit(
        challenge.op, source, challenge.like, name=f"gold_{challenge.id.split('.')[1]}", **launch
    )


def controls() -> list[Edit]:
    """The parents of the chapter's kernels, edited by a comment: whatever differs is an error of the measurement."""
    parents = {made.op: made for made in chapter_edits()}
    return [
        edit(m.op, m.parent.source + "// the same\n", m.like, name="control")
        for m in parents.values()
    ]


def source_mark(made: Edit) -> str:
    """A mark of a kernel's source, so that a recorded time is known to be of this one."""
    return hashlib.sha256(made.source.strip().encode()).hexdigest()[:12]


def record(path: Path) -> None:
    """Time every kernel of the chapter against its parent, alone and in phase 8c, and write the figures as JSON."""
    device, figures, marks = open_device("cuda"), [], {}
    for made in [*chapter_edits(), *controls()]:
        card = trial(
            made.op, made.source, made.like, name=made.name, rows_per_block=made.rows_per_block,
            time=True, engine=True, model=MODEL, phase=PHASE, device=device,
        )  # fmt: skip
        print(f"{made.op}:{made.name}: {card.verdict}", flush=True)
        if card.alone is None or card.engine is None:
            continue
        marks[f"{made.op} {made.name}"] = source_mark(made)
        for where, c, unit, scale in (
            ("alone", card.alone.comparison, "us", 1e3),
            (f"in phase {PHASE}", card.engine.comparison, "ms", 1.0),
        ):
            figures += _figures(f"{made.op} {made.name}, {where}", c, unit, scale)
    facts = {"environment": environment(device), "model": MODEL, "sources": marks}
    content = {**facts, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def _figures(what: str, c: Comparison, unit: str, scale: float) -> list[Figure]:
    return [
        Figure.of(f"{what}, before", unit, [scale * t for t in c.base_ms]),
        Figure.of(f"{what}, after", unit, [scale * t for t in c.change_ms]),
        Figure(f"{what}, speed-up", c.speedup, "times", c.low, c.high, len(c.base_ms)),
    ]


# ---- what was recorded ----


@dataclass(frozen=True)
class Recorded:
    """A kernel's recorded times: medians in microseconds alone, and its speed-ups with their 95 % intervals."""

    before_us: float
    after_us: float
    alone: Figure
    engine: Figure

    @property
    def verdict(self) -> str:
        """What an experiment inside the engine would have proposed."""
        found = self.engine
        return Comparison("", "", "", (), (), found.value, found.low, found.high).verdict


def recorded(run: Run, kernel: str) -> Recorded:
    """The recorded times of "OP NAME"; KeyError where the run has none of it."""
    figures = run.figures
    return Recorded(
        figures[f"{kernel}, alone, before"].value,
        figures[f"{kernel}, alone, after"].value,
        figures[f"{kernel}, alone, speed-up"],
        figures[f"{kernel}, in phase {PHASE}, speed-up"],
    )


def recorded_sources() -> dict[str, str]:
    """The marks of the recorded kernels' sources, by "OP NAME": see `source_mark`."""
    content = json.loads(in_checkout(f"data/runs/{RECORDED}.json").read_text())
    return dict(content["sources"])


def times_table(run: Run, kernels: Mapping[str, str]) -> Table:
    """Kernels by the label that the table gives them, alone and inside the engine, with a verdict on the latter."""
    found = {label: recorded(run, kernel) for label, kernel in kernels.items()}
    rows = [
        [label, f"{r.before_us:.2f} us", f"{r.after_us:.2f} us", _ratio(r.alone), _ratio(r.engine), r.verdict]
        for label, r in found.items()
    ]  # fmt: skip
    head = ["", "parent, alone", "edit, alone", "speed-up alone", f"speed-up in phase {PHASE}", "verdict"]  # fmt: skip
    return Table(head, rows)


def _ratio(f: Figure) -> str:
    return f"{f.value:.3f} ({f.low:.3f} to {f.high:.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=record.__doc__)
    parser.add_argument("path", type=Path, help="the JSON file to write")
    record(parser.parse_args().path)
