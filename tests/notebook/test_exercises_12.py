"""Exercise 12.1: the starter is not solved, the solution is, and wrong kernels hear what is wrong with them."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, solution, solution_text

WIDE = op("gemv_q4_0").variant("float4").source
BYTES = "const unsigned char* bytes = blocks[b].nibbles + first_byte;"
FIRST = "(float)((bytes[0] >> shift & 15) - 8) * v.x"
PAIRS = """\
const unsigned short* pairs = (const unsigned short*)(blocks[b].nibbles + first_byte);
    unsigned char bytes[4] = {A, B, C, D};"""
HIGH_FIRST = ("pairs[0] >> 8", "pairs[0]", "pairs[1] >> 8", "pairs[1]")
RIGHT = ("pairs[0]", "pairs[0] >> 8", "pairs[1]", "pairs[1] >> 8")


def pairs(order: tuple[str, ...]) -> str:
    """Two loads of two bytes, taken apart in some order."""
    text = PAIRS
    for name, value in zip("ABCD", order, strict=True):
        text = re.sub(rf"\b{name}\b", f"(unsigned char)({value})", text)
    return text


def verdict(source: str, capsys: pytest.CaptureFixture[str]) -> str:
    check("12.1", source)
    return capsys.readouterr().out


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/12_float4.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-12.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "op": op})
    assert capsys.readouterr().out == "Exercise 12.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("12.1"), {})
    said = capsys.readouterr().out
    assert said.startswith("Exercise 12.1: solved. ")
    assert "96 before, 64 after" in said
    assert solution_text("12.1") in solution("12.1").data


def test_another_way_is_solved_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "solved. " in verdict(WIDE.replace(BYTES, pairs(RIGHT)), capsys)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # four bytes at once: every other block lies wrong for it
        (
            BYTES,
            "int four = *(const int*)(blocks[b].nibbles + first_byte);"
            "unsigned char* bytes = (unsigned char*)&four;",
            r"yours\.cu:23 accesses .* not a multiple of 4 bytes",
        ),
        # the same, hidden from the check of casts
        (
            BYTES,
            "unsigned char bytes[4]; __builtin_memcpy(bytes, blocks[b].nibbles + first_byte, 4);",
            "does not divide the address",
        ),
        # the bytes of a pair in the wrong order
        (BYTES, pairs(HIGH_FIRST), r"y\[0\] is .* and should be"),
        # 16 bytes of nibbles in a lane's own copy: right, and more work
        (
            BYTES,
            "unsigned char all[16]; for (int i = 0; i < 16; i++) all[i] = blocks[b].nibbles[i];"
            "const unsigned char* bytes = all + first_byte;",
            "load requests, the starter's 96; 64 are enough",
        ),
        (FIRST, "(float)((bytes[0] >> shift & 15) - 7) * v.x", r"y\[0\] is .* and should be"),
        ("if (lane == 0) y[row] = sum;", "if (lane == 0) y[row + 1] = sum;", "writes outside y"),
        ("float sum = 0;", "float sum = 0.0f;", "96 load requests, the starter's 96"),
        ("float sum = 0;", "float sum = 0", "does not compile"),
    ],
)
def test_wrong_kernel_hears_what_is_wrong(
    before: str, after: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before in WIDE
    out = verdict(WIDE.replace(before, after), capsys)
    assert out.startswith("Exercise 12.1: not solved yet. ")
    assert re.search(said, out), out
