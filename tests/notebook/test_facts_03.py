"""What chapter 03 says in prose is what its outputs, the log and the ladder say."""

from pathlib import Path

import nbformat

from sovereign_lab.engine import PHASES


def chapter(repository: Path) -> tuple[str, str]:
    """(prose, text of all outputs)"""
    path = repository / "notebooks/03_the_double_offset.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    outputs = [o for c in cells if c.cell_type == "code" for o in c.outputs]
    texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs]
    return prose, "\n".join(map(str, texts))


def test_figures_of_the_prose_stand_in_the_outputs(repository: Path) -> None:
    prose, outputs = chapter(repository)
    rows = [line for line in outputs.splitlines() if line[:2].strip().isdigit() and "pass" in line]
    assert len(rows) == 16
    assert ["FAIL" in row for row in rows] == [False] + [True] * 15
    assert "at 10 of the 16 positions" in prose
    line = next(line for line in outputs.splitlines() if "is the most likely token right" in line)
    assert line.split("none yet")[1].split()[0] == "10"
    assert "their own position's key: 1 of 13" in outputs


def test_no_speed_is_claimed(repository: Path) -> None:
    assert PHASES["1"].seed_tokens_per_second is None and "1" not in PHASES.timed()
    assert {phase.plan["rope_kv"] for phase in PHASES.values()} == {"fixed"}
    assert PHASES["0"].seed_tokens_per_second == 53.67
    prose, outputs = chapter(repository)
    assert "53.67" in prose
    assert "tok/s" not in outputs
    assert "tokens/s" not in outputs
