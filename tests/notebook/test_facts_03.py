"""What chapter 03 says in prose is what its outputs, the log and the ladder say."""

import re
from pathlib import Path

import nbformat
from edited_cells import kernel_source

from sovereign_lab.engine import PHASES
from sovereign_lab.measure.experiment.job import CHECKED_TOKENS, TEXT
from sovereign_lab.measure.trial.cases import odd_cases
from sovereign_lab.models import load_model
from sovereign_lab.notebook.double_offset import DOUBLE_OFFSET


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
    plans = [phase.plan for phase in PHASES.values()]
    assert {plan["rope_kv"] for plan in plans if "rope_kv" in plan} == {"fixed"}
    assert PHASES["0"].seed_tokens_per_second == 53.67
    prose, outputs = chapter(repository)
    assert "53.67" in prose
    assert not re.search(r"\d ?tok(en)?s?/s|tok/s: +\d", outputs)
    assert "timed: False" in outputs


def test_the_card_names_the_shape_and_the_element(repository: Path) -> None:
    prose, outputs = chapter(repository)
    assert DOUBLE_OFFSET.source.endswith(kernel_source("03").partition("\n")[2] + "\n")
    first = odd_cases("rope_kv")[:3]
    assert [int(case["position"][0]) for case in first] == [0, 1, 5]
    keys = first[2]["keys"]
    assert (keys.shape, 2 * 5 * keys[0].size) == ((7, 4, 64), 2560)
    card = outputs[outputs.index("rope_kv:double_offset, edited from fixed") :]
    assert "heads = 32, kv_heads = 4, head_dim = 64, rope_dim = 64, position = 5" in card
    assert f"past the end of `keys` ({keys.size:,} halves) (as `keys[2560]`)" in card
    assert f"`keys[{keys.size - 1}]`" in prose
    assert "Kept as" not in card


def test_only_the_results_can_tell_the_experiment(repository: Path) -> None:
    last = len(load_model("storyteller").tokenizer.encode(TEXT)) + CHECKED_TOKENS
    assert 2 * last < 64
    assert "proposed: revert: wrong results" in chapter(repository)[1]
