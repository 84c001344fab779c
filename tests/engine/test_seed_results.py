"""The ladder's figures of the seed are those of data/seed_results.csv."""

import csv
from pathlib import Path

from sovereign_lab.engine import PHASES


def test_phases_give_the_seed_s_figures(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] for row in rows)
    figures: dict[str, set[str]] = {}
    for row in rows:
        figures.setdefault(row["phase"], set()).add(row["tokens_per_second"])
    for phase in PHASES.values():
        figure = phase.seed_tokens_per_second
        expected = "" if figure is None else f"{figure:.2f}"
        assert expected in figures[phase.id], phase.id
