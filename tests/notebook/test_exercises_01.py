"""Exercise 01.1: starter unsolved, solution solved, wrong dots told what is wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from sovereign_lab.notebook.cpu_steps import block_dot
from sovereign_lab.notebook.exercises import check, solution_text

Answer = Callable[[np.ndarray, np.ndarray, Any], Any]


def nibbles(block: np.ndarray) -> np.ndarray:
    return np.concatenate([block[2:] & 15, block[2:] >> 4])


def scale(block: np.ndarray) -> float:
    return float(block[:2].view(np.float16)[0])


def levels(block: np.ndarray) -> np.ndarray:
    return nibbles(block).astype(np.int32) - 8


def wide(q: np.ndarray) -> np.ndarray:
    return q.astype(np.int32)


def by_pairs(block: np.ndarray) -> np.ndarray:
    return np.stack([block[2:] & 15, block[2:] >> 4], axis=1).reshape(-1).astype(np.int32) - 8


def changes(block: np.ndarray, q: np.ndarray, d: Any) -> float:
    right = block_dot(block, q, d)
    q[:] = 0
    return right


WRONG: dict[str, tuple[Answer, str]] = {
    "8 kept": (
        lambda b, q, d: scale(b) * d * (nibbles(b).astype(np.int32) @ wide(q)),
        "8 was not taken from the nibbles",
    ),
    "by pairs": (lambda b, q, d: scale(b) * d * (by_pairs(b) @ wide(q)), "yours go by pairs"),
    "uint8 wraps": (
        lambda b, q, d: scale(b) * d * ((nibbles(b) - 8).astype(np.int32) @ wide(q)),
        "wraps round in uint8",
    ),
    "int8 products": (
        lambda b, q, d: scale(b) * d * int((levels(b).astype(np.int8) * q).sum()),
        "products do not fit int8",
    ),
    "int8 sum": (
        lambda b, q, d: scale(b) * d * int((levels(b).astype(np.int8) * q).sum(dtype=np.int8)),
        "do(es)? not fit int8|stays int8",
    ),
    "int8 dot": (
        lambda b, q, d: scale(b) * d * int(levels(b).astype(np.int8) @ q),
        "do(es)? not fit int8|stays int8",
    ),
    "no d": (lambda b, q, d: scale(b) * (levels(b) @ wide(q)), "scale d of the activations"),
    "no scale": (lambda b, q, d: d * (levels(b) @ wide(q)), "block's own scale is missing"),
    "whole scale": (
        lambda b, q, d: float(b[:2].view(np.uint16)[0]) * d * (levels(b) @ wide(q)),
        "fp16 number, not a whole one",
    ),
    "a vector": (lambda b, q, d: scale(b) * d * levels(b) * wide(q), "not an array of the shape"),
    "NaN": (lambda b, q, d: float("nan"), "yours says nan"),
    "an error": (lambda b, q, d: b @ q, "raises ValueError"),
    "changes q": (changes, "changes the arrays"),
    "one block only": (lambda b, q, d: 12.5, "block 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_dots_hear_what_is_wrong(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer, said = WRONG[name]
    with np.errstate(all="ignore"):
        check("01.1", answer)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 01.1: not solved yet. ")
    assert re.search(said, out), out


def test_floats_are_right_too(capsys: pytest.CaptureFixture[str]) -> None:
    check("01.1", lambda b, q, d: scale(b) * float(d) * float(levels(b) @ q.astype(np.float64)))
    assert capsys.readouterr().out.startswith("Exercise 01.1: solved. 40 blocks right")


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository / "notebooks/01_the_cpu_before.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    source = next(c.source for c in cells if "exercise-01.1" in c.metadata.get("tags", []))
    exec(source, {"check": check, "np": np})
    assert capsys.readouterr().out == "Exercise 01.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("01.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 01.1: solved. ")
