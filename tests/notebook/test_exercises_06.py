"""Exercise 06.1: the starter unsolved, the solution solved, groups that run too early or too late told so."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.engine import PHASES
from sovereign_lab.notebook.exercises import check, solution_text
from sovereign_lab.notebook.side_by_side import (
    MADE_UP,
    Touches,
    conflict,
    fewest,
    layer_touches,
)

Launches = Sequence[Touches]


def test_starter_is_not_solved_and_solution_is(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(repository / "notebooks/06_three_streams.ipynb", as_version=4).cells
    starter = next(c.source for c in cells if "exercise-06.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check})
    assert capsys.readouterr().out == "Exercise 06.1: not solved yet.\n"
    exec(solution_text("06.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 06.1: solved. ")
    assert "the 14 launches of a layer need 11 steps" in out


def levels(waits: Callable[[Touches, Touches], object]) -> Callable[[Launches], list[list[int]]]:
    """An answer that puts a launch behind all those before it for which `waits(earlier, later)`."""

    def answer(launches: Launches) -> list[list[int]]:
        group_of: list[int] = []
        for i, later in enumerate(launches):
            behind = [group_of[j] for j in range(i) if waits(launches[j], later)]
            group_of.append(1 + max(behind, default=-1))
        groups = range(1 + max(group_of, default=-1))
        return [[i for i, g in enumerate(group_of) if g == group] for group in groups]

    return answer


def neighbours(launches: Launches) -> list[list[int]]:
    """As the engine's branches are: only launches next to each other share a group."""
    groups: list[list[int]] = []
    for i, later in enumerate(launches):
        if groups and not any(conflict(launches[j], later) for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda launches: [list(range(len(launches)))], "in one group, but WQ reads normed"),
        (
            lambda launches: [[i] for i in range(len(launches))],
            "in 14 groups; 11 are enough",
        ),
        (levels(lambda a, b: a.writes & b.reads), "one that overwrites what an earlier one reads"),
        (levels(lambda a, b: a.reads & b.reads), "nothing runs too early, but in"),
        (
            levels(lambda a, b: a.writes & b.reads or a.reads & b.writes),
            "two that write the same array: a and b are in one group",
        ),
        (neighbours, "two chains in turn: nothing runs too early, but in 3 groups; 2 are enough"),
        (lambda launches: [[i] for i in reversed(range(len(launches)))], "the wrong way round"),
        (lambda launches: [[0], [1]], "every index from 0 to 13"),
        (lambda launches: [launch.name for launch in launches], "list of groups"),
        (lambda launches: 3, "list of groups"),
        (lambda launches: launches[99], "raises IndexError"),
    ],
)
def test_wrong_groups_hear_what_is_wrong(
    wrong: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("06.1", wrong)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 06.1: not solved yet.")
    assert re.search(said, out), out


def test_steps_of_a_layer_at_every_phase() -> None:
    """Q, K and V share a step, gate and up share one where they are not fused; nothing else does."""
    in_file = [p for p in PHASES if "gemv_q4_0" in PHASES[p].plan]  # later ones read W in tiles
    found = {phase: (len(t), fewest(t)) for phase in in_file if (t := layer_touches(phase))}
    assert found == {
        p: (14, 11) if "ffn_swiglu" not in PHASES[p].plan else (12, 10) for p in in_file
    }


def test_a_conflict_is_any_shared_array_that_one_of_the_two_writes() -> None:
    reads, overwrites = MADE_UP["one that overwrites what an earlier one reads"]
    assert conflict(reads, overwrites) == "b overwrites x, which a still reads"
    assert conflict(*MADE_UP["two that only read the same array"]) is None
    q, k = layer_touches()[1:3]
    assert (q.name, k.name, conflict(q, k)) == ("WQ", "WK", None)
