"""`sovereign-lab ledger`: each format, to stdout or a file; an experiment alone; errors in a sentence."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from sovereign_lab import cli
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.ledger import ledger
from sovereign_lab.measure.ledger.records import Checks, KernelChange, Setup, begin, decide, finish


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's ledger of two experiments: one decided on, one unfinished."""
    path = tmp_path / "l.sqlite3"
    monkeypatch.setenv("SOVEREIGN_LEDGER", str(path))
    kernel = KernelChange("add", "mine", 256, 4, None, "b\n", "elementwise", "a\n")
    for title in ("wider loads", "fewer blocks"):
        setup = Setup(title, "h", 1.5, "3", None, "m", {"device": "d"}, 16, 4, (kernel,))
        begin(path, setup)
    times = Comparison("a", "b", "d", (3.0,) * 5, (2.0,) * 5, 1.5, 1.4, 1.6)
    finish(path, 1, Checks(1e-5, 2e-5, 16, 16, 0, True), times)
    decide(path, 1, "keep", "it is faster")
    return path


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["ledger", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_table_of_the_projects_ledger(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert len(lines) == 3 and lines[0].startswith("#  experiment")
    assert "wider loads" in lines[1] and "keep: it is faster" in lines[1]
    assert lines[2].endswith("unfinished")


def test_each_format_is_the_ledgers_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = ledger(place)
    assert shown(capsys, "--format", "markdown") == mine.markdown()
    assert shown(capsys, "--format", "html") == mine.html()
    (head, one, two) = csv.reader(io.StringIO(shown(capsys, "--format", "csv")))
    assert dict(zip(head, one, strict=True))["decision"] == "keep" and two[0] == "2"


def test_one_experiment_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--experiment", "1") == f"{ledger(place).entry(1)!r}\n"
    lines = shown(capsys, "--experiment", "2", "--format", "csv").splitlines()
    assert len(lines) == 2 and lines[1].startswith("2,unfinished,")


def test_a_file_is_written_and_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert shown(capsys, "--format", "html", "--output", str(page)) == f"{page}\n"
    assert page.read_text(encoding="utf-8") == ledger(place).html()


def test_a_path_goes_before_the_environment(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOVEREIGN_LEDGER", str(tmp_path / "other.sqlite3"))
    assert "has no experiments yet" in shown(capsys)
    assert "wider loads" in shown(capsys, "--path", str(place))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--experiment", "9"), "no experiment 9; its numbers are 1 to 2"),
        (("--path", "nowhere.sqlite3"), "There is no ledger"),
        (("--output", "nowhere/page.html"), "nowhere/page.html: No such file or directory"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert cli.main(["ledger", *options]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and said in err
