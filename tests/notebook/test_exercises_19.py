"""Exercise 19.1: the committed starter, the solution, and what wrong answers are told."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import numpy as np
import pytest

from sovereign_lab.models.tiles import tile_q4_0
from sovereign_lab.notebook import tile_places
from sovereign_lab.notebook.exercises import check, solution, solution_text

Answer = Callable[[int, int, int], object]


def test_starter_is_not_solved_yet(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/19_weights_in_tiles.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-19.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check})
    assert capsys.readouterr().out == "Exercise 19.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("19.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 19.1: solved. Nibbles and scales found")
    assert solution_text("19.1") in solution("19.1").data


@pytest.mark.parametrize(("rows", "blocks"), tile_places.SHAPES)
def test_places_are_those_of_the_host_s_tiles(rows: int, blocks: int) -> None:
    in_file = np.random.default_rng().integers(0, 256, (rows, blocks * 18), np.uint8)
    tiles = tile_q4_0(in_file).view(np.uint8).reshape(-1)
    for row in range(rows):
        for column in range(blocks * 32):
            byte, nibble, scale = tile_places.place(row, column, blocks)
            block, i = in_file[row].reshape(blocks, 18)[column // 32], column % 32
            level = int(block[2 + i % 16]) >> (0 if i < 16 else 4) & 15
            assert int(tiles[byte]) >> (0 if nibble == "low" else 4) & 15 == level ^ 8
            assert tiles[scale : scale + 2].tolist() == block[:2].tolist()


def _rows_first(row: int, column: int, blocks: int) -> tuple[int, str, int]:
    """A row's two blocks of a pair side by side."""
    byte, nibble, scale = tile_places.place(row, column, blocks)
    b, r = column // 32 % 2, row % 4
    moved = (r * 2 + b) - (b * 4 + r)
    return byte + 16 * moved, nibble, scale + 2 * moved


def _half_pairs(row: int, column: int, blocks: int) -> tuple[int, str, int]:
    """No room for what an odd number of blocks leaves empty."""
    byte, nibble, scale = tile_places.place(row, column, blocks)
    missing = blocks % 2 * 4
    return byte - row // 4 * missing * 18, nibble, scale - row // 4 * missing * 18


def _scale_beside(row: int, column: int, blocks: int) -> tuple[int, str, int]:
    byte, nibble, _ = tile_places.place(row, column, blocks)
    return byte, nibble, byte // 16 * 16 + 16


def _neighbours(row: int, column: int, blocks: int) -> tuple[int, str, int]:
    """Weights 2 i and 2 i + 1 in a byte."""
    byte, _, scale = tile_places.place(row, column, blocks)
    return byte // 16 * 16 + column % 32 // 2, "high" if column % 2 else "low", scale


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_rows_first, "Of a pair, first the first block of all four rows lies there"),
        (_half_pairs, "An odd number of blocks fills its last pair with zeros"),
        (_scale_beside, "The nibble is right. Scales lie behind all weights of their tile"),
        (
            lambda row, column, blocks: (
                tile_places.place(row, column, blocks)[0],
                "low",
                tile_places.place(row, column, blocks)[2],
            ),
            "weight i in its low nibble and i + 16 in its high one",
        ),
        (_neighbours, "yours says"),
        (lambda row, column, blocks: 0, "An answer is (byte, 'low' or 'high', byte of the scale)"),
        (lambda row, column, blocks: [][row], "your function raises IndexError"),
    ],
)
def test_wrong_places_hear_what_is_wrong(
    answer: Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("19.1", answer)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 19.1: not solved yet. ")
    assert said in out
