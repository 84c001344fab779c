"""Exercise 22.1: the starter is not solved, the solution is, and wrong relays hear what is wrong with them."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.notebook import relay
from sovereign_lab.notebook.exercises import check, solution, solution_text

SOLVED = solution_text("22.1").partition('mine = """\\\n')[2].partition('"""')[0]
POISON = "      say(next + me, NOT_YET);\n"
WRITE = "      notes[step * blocks + me] = sum % 1000 + me;\n"
FENCE = "      __threadfence();\n"
END = "    if (lane == 0) sums"


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/22_one_launch.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-22.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "relay": relay})
    assert capsys.readouterr().out == "Exercise 22.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("22.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 22.1: solved. Right in 3 grids and free of races")
    assert "barriers of the grid in 12 steps: 24 before, 0 after" in out
    assert solution_text("22.1") in solution("22.1").data


def test_barriers_give_the_sums_too() -> None:
    for blocks, steps in relay.SIZES:
        assert (relay.run(relay.BARRIERS, blocks, steps) == relay.expected(blocks, steps)).all()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        # two slots: the hang of the persistent kernel
        (SOLVED.replace("step % 3", "step % 2").replace("(step + 1) % 3", "(step + 1) % 2"), "the grid hangs"),
        # its own word poisoned as soon as it has read all: someone else has not
        (SOLVED.replace(POISON, "").replace(END, "    if (lane == 0) say(now + me, NOT_YET);\n" + END),
         "the grid hangs"),
        # poisoned only behind the wait: a block that is ahead takes the old word for the new one
        (SOLVED.replace(POISON, "").replace(END, "    if (lane == 0) say(next + me, NOT_YET);\n" + END),
         "the grid hangs"),
        (SOLVED.replace(POISON, ""), "in step 2 block 0 has the sum .* looks as if it had been said"),
        (SOLVED.replace(FENCE, ""), "line 21 reads what line 14 writes. A fence belongs between"),
        # announced before it is written
        (SOLVED.replace(WRITE + FENCE, "").replace("+ step);\n    }", "+ step);\n" + FENCE + WRITE + "    }"),
         "nothing orders a note and the word that announces it"),
        (SOLVED.replace("    __threadfence();\n    __syncwarp", "    __syncwarp"), "only one side has a fence"),
        (relay.BARRIERS + "// mine\n", "the warps of 4 blocks pass 96 barriers in 12 steps"),
        (SOLVED.replace("await(now + lane)", "peek(now + lane)"), "has the sum"),
        (SOLVED.replace("sum % 1000 + me;", "sum % 1000 + me"), "does not compile"),
    ],
)  # fmt: skip
def test_wrong_relays_hear_what_is_wrong(
    source: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert source != SOLVED
    check("22.1", source)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 22.1: not solved yet. ")
    assert re.search(said, out), out
