"""The ladder's figures of the seed are those of data/seed_results.csv."""

import csv
from pathlib import Path

from sovereign_lab.engine import PHASES


def test_phases_give_the_seed_s_figures(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] for row in rows)
    figures: dict[str, set[float | None]] = {}
    for row in rows:
        rate = row["tokens_per_second"]
        figures.setdefault(row["phase"], set()).add(float(rate) if rate else None)
    for phase in PHASES.values():
        if phase.planned:
            assert phase.seed_tokens_per_second is None and phase.id not in figures
            continue
        assert phase.seed_tokens_per_second in figures[phase.id], phase.id
