"""Copies of the notebooks for a learner: pristine, and never over what the learner wrote."""

from pathlib import Path

import nbformat
import pytest

from sovereign_lab.cli import main
from sovereign_lab.errors import LabError
from sovereign_lab.notebook.copies import copy_notebooks, originals, reset_notebook


def test_every_notebook_is_copied_without_outputs(tmp_path: Path) -> None:
    copied = copy_notebooks(tmp_path / "mine")
    assert [p.name for p in copied.made] == [p.name for p in originals().values()]
    for source, copy in zip(originals().values(), copied.made, strict=True):
        ours, theirs = (nbformat.read(p, as_version=4) for p in (source, copy))
        assert [c.source for c in ours.cells] == [c.source for c in theirs.cells]
        assert [c.metadata for c in ours.cells] == [c.metadata for c in theirs.cells]
        code = [c for c in theirs.cells if c.cell_type == "code"]
        assert code and not any(c.outputs or c.execution_count for c in code)
    assert not list((tmp_path / "mine").glob(".*"))


def test_outputs_come_along_when_asked_for(tmp_path: Path) -> None:
    (made,) = copy_notebooks(tmp_path, ["00"], outputs=True).made
    assert nbformat.read(made, as_version=4) == nbformat.read(originals()["00"], as_version=4)


def test_what_a_learner_wrote_stays(tmp_path: Path) -> None:
    first = copy_notebooks(tmp_path, ["02"]).made[0]
    first.write_text("my work")
    again = copy_notebooks(tmp_path, ["02", "03"])
    assert again.kept == (first,) and len(again.made) == 1
    assert first.read_text() == "my work"


def test_reset_keeps_every_earlier_state(tmp_path: Path) -> None:
    (mine,) = copy_notebooks(tmp_path, ["02"]).made
    fresh = mine.read_text()
    for number in (1, 2):
        mine.write_text(f"work {number}")
        kept = reset_notebook(mine)
        assert kept.name == f"{mine.stem}.mine-{number}.ipynb"
        assert kept.read_text() == f"work {number}" and mine.read_text() == fresh


def test_what_cannot_be_copied_is_a_sentence(tmp_path: Path) -> None:
    own = originals()["02"]
    before = own.read_bytes()
    (tmp_path / "file").write_text("")
    (tmp_path / "other.ipynb").write_text("")
    for message, call in {
        "There is no chapter 99; there are 00, ": lambda: copy_notebooks(tmp_path, ["99"]),
        "the lab's own notebooks": lambda: copy_notebooks(own.parent),
        "is a file; name a folder": lambda: copy_notebooks(tmp_path / "file"),
        "is not there; `sovereign-lab": lambda: reset_notebook(tmp_path / own.name),
        "other.ipynb is none of the lab's": lambda: reset_notebook(tmp_path / "other.ipynb"),
        "is the lab's own; `git": lambda: reset_notebook(own),
    }.items():
        with pytest.raises(LabError, match=message):
            call()
    assert own.read_bytes() == before


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "course"
    assert main(["notebooks", "copy", str(folder), "--chapter", "02"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert Path(line).parent == folder
    assert main(["notebooks", "copy", str(folder), "--chapter", "02"]) == 0
    told = capsys.readouterr()
    assert not told.out and Path(line).name in told.err.replace("\n", " ")
    assert main(["notebooks", "reset", line]) == 0
    assert ".mine-1.ipynb" in capsys.readouterr().out
    assert main(["notebooks", "copy", str(folder), "--chapter", "7"]) == 1
    assert "There is no chapter 7" in capsys.readouterr().err
