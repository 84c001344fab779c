"""Exercise 03.1: the starter is not solved, the solution is, and a wrong kernel hears what is wrong with it."""

from pathlib import Path

import nbformat
import pytest

import sovereign_lab as sl
from sovereign_lab.devices import Device
from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.double_offset import DOUBLE_OFFSET, engine_with
from sovereign_lab.notebook.exercises import check, solution, solution_text

KEY = "KV* key = keys + (size_t)pos * kv_dim;"
FIRST = "store(key + (size_t)pos * kv_dim + from,"
SECOND = "store(key + (size_t)pos * kv_dim + from + 1,"


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository / "notebooks/03_the_double_offset.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    starter = next(c.source for c in cells if "exercise-03.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check, "DOUBLE_OFFSET": DOUBLE_OFFSET})
    assert capsys.readouterr().out == "Exercise 03.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("03.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 03.1: solved. ")
    assert solution_text("03.1") in solution("03.1").data


def test_solution_brings_the_text_back(simt: Device) -> None:
    names: dict[str, str] = {}
    exec(solution_text("03.1"), names)
    model = sl.load_model("storyteller")
    broken, mine = (
        engine_with(source, model, simt, context=32).generate("Once upon a time", max_tokens=12)
        for source in (DOUBLE_OFFSET.source, names["my_kernel"])
    )
    right = sl.Engine(model, simt, context=32).generate("Once upon a time", max_tokens=12)
    assert mine.token_ids == right.token_ids != broken.token_ids


def test_other_fixes_are_as_right(capsys: pytest.CaptureFixture[str]) -> None:
    in_the_stores = DOUBLE_OFFSET.source.replace(FIRST, "store(key + from,").replace(
        SECOND, "store(key + from + 1,"
    )
    for source in (in_the_stores, op("rope_kv").variant("fixed").source):
        check("03.1", source)
        assert capsys.readouterr().out.startswith("Exercise 03.1: solved. ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # the offset is gone altogether: position 0 cannot tell
        (
            {KEY: "KV* key = keys;", FIRST: "store(key + from,", SECOND: "store(key + from + 1,"},
            "position 1 (9 query heads, 3 KV heads of 64, half): keys are written to slot 0; "
            "this position's slot is 1.",
        ),
        ({FIRST: "store(key + from,"}, "keys are written to slots 1 and 2; this position's slot"),
        # the offset of one head in place of all KV heads'
        ({KEY: "KV* key = keys - (size_t)pos * head_dim;"}, "keys are written to slots 0 and 1"),
        (
            {KEY: "KV* key = keys;", "KV* value = values + (size_t)pos * kv_dim": "KV* value = values"},
            "values are written to slot 0; this position's slot is 1.",
        ),
        (
            {KEY: "KV* key = keys;", "int pos = *position,": "int pos = *position / 2,"},
            "position 1 (9 query heads, 3 KV heads of 64, half): q, head 0, element 0 is",
        ),
        ({KEY: "KV* key = keys;", "a * cosine - b * sine);\n    store": "a);\n    store"}, "keys[1], head 0"),
        (
            {KEY: "KV* key = keys;", SECOND: f"if (i) {SECOND}"},
            "not written in full: head 0, element 1",
        ),
        ({KEY: "KV* key = keys;", SECOND: f"q[-1] = 0; {SECOND}"}, "writes outside q"),
        ({KEY: "return; KV* key = keys;"}, "keys are written nowhere"),
        ({KEY: ""}, "does not compile"),
    ],
)  # fmt: skip
def test_wrong_kernel_hears_what_is_wrong(
    changes: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = DOUBLE_OFFSET.source
    for before, after in changes.items():
        assert before in source
        source = source.replace(before, after)
    check("03.1", source)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 03.1: not solved yet. ")
    assert said in out
