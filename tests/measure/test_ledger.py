"""The ledger: two writers, killed writers, old files, damaged files, and how it reads."""

import csv
import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.ledger import CSV_HEAD, HEAD, Entry, ledger
from sovereign_lab.measure.ledger import file as ledger_file
from sovereign_lab.measure.ledger.file import APPLICATION_ID, MIGRATIONS, ledger_path
from sovereign_lab.measure.ledger.records import (
    Checks,
    KernelChange,
    Setup,
    begin,
    decide,
    fail,
    finish,
)
from sovereign_lab.notebook.ledger_plots import ledger_speeds

KERNEL = KernelChange("add", "mine", 256, 4, None, "b\nc\n", "elementwise", "a\nc\n")
CHECKS = Checks(1e-5, 2e-5, 16, 16, 0, True)


def setup(title: str = "t", **changed: object) -> Setup:
    facts: dict[str, object] = dict(
        title=title, hypothesis="h", predicted=1.5, baseline="3", phase=None, model="m",
        environment={"device": "d"}, position=16, tokens=4, kernels=(KERNEL,),
    )  # fmt: skip
    return Setup(**(facts | changed))  # type: ignore[arg-type]


def comparison(base: float = 3.0, change: float = 2.0, rounds: int = 5) -> Comparison:
    ratio = base / change
    return Comparison(
        "a", "b", "d", (base,) * rounds, (change,) * rounds, ratio, ratio - 0.01, ratio + 0.01
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "l.sqlite3"


@pytest.fixture
def filled(path: Path) -> Path:
    """Four experiments: decided on, wrong, failed, unfinished."""
    finish(path, begin(path, setup("one | pipe\n<b>")), CHECKS, comparison())
    decide(path, 1, "revert", "too early")
    decide(path, 1, "keep", "it is faster, 'surely'")
    finish(path, begin(path, setup("two")), Checks(0.5, 2e-5, 0, 16, 0, False), None)
    fail(path, begin(path, setup("three", phase="5")), "it did not compile")
    begin(path, setup("four"))
    return path


def check_whole(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---- what it holds ----


def test_what_goes_in_comes_out(filled: Path) -> None:
    one, two, three, four = ledger(filled).entries
    assert one.setup == setup("one | pipe\n<b>") and one.checks == CHECKS
    assert one.base_ms == (3.0,) * 5 and one.change_ms == (2.0,) * 5
    assert one.tokens_per_second == (pytest.approx(1000 / 3), 500)
    assert (one.verdict, one.decision, one.why) == ("keep", "keep", "it is faster, 'surely'")
    assert one.against_prediction == "as predicted"
    assert one.kernel("add").diff().splitlines()[-3:] == ["-a", "+b", " c"]
    assert (two.state, two.verdict, two.speedup) == ("wrong", "revert", None)
    assert (three.state, three.error) == ("failed", "it did not compile")
    assert (four.state, four.ended, four.decision) == ("unfinished", None, None)
    assert [e.started <= (e.ended or "9") for e in (one, two, three, four)] == [True] * 4


def test_the_last_decision_counts_and_all_are_kept(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as db:
        kept = db.execute("SELECT decision, why FROM decisions ORDER BY id").fetchall()
    assert kept == [("revert", "too early"), ("keep", "it is faster, 'surely'")]
    entry = ledger(filled).entry(2).decide("revert", " wrong  ")
    assert isinstance(entry, Entry) and (entry.decision, entry.why) == ("revert", "wrong")


def test_what_cannot_be_decided(filled: Path) -> None:
    for number, decision, why, message in (
        (1, "maybe", "x", '"keep" or "revert"'),
        (1, "keep", " ", "needs a reason"),
        (3, "keep", "x", "no verdict"),
        (9, "keep", "x", "no verdict"),
    ):
        with pytest.raises(LabError, match=message):
            decide(filled, number, decision, why)  # type: ignore[arg-type]


def test_an_experiment_ends_once(filled: Path) -> None:
    for number in (1, 2, 3, 9):
        with pytest.raises(LabError, match=f"no experiment {number} in flight"):
            finish(filled, number, CHECKS, comparison())
        with pytest.raises(LabError, match=f"no experiment {number} in flight"):
            fail(filled, number, "x")
    assert len(ledger(filled).entry(1).base_ms) == 5


def test_entries_by_number(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no experiment 5; its numbers are 1 to 4"):
        ledger(filled).entry(5)
    with pytest.raises(LabError, match="it is empty"):
        ledger(tmp_path / "none.sqlite3").entry(1)
    with pytest.raises(LabError, match="changed no op 'swiglu'; it changed add"):
        ledger(filled).entry(1).kernel("swiglu")


# ---- where it lies ----


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOVEREIGN_LEDGER", raising=False)
    assert ledger_path() == tmp_path / "sovereign-lab.sqlite3"
    monkeypatch.setenv("SOVEREIGN_LEDGER", "other/l.sqlite3")
    assert ledger_path() == tmp_path / "other" / "l.sqlite3"
    assert ledger_path("here") == tmp_path / "here"
    with pytest.raises(LabError, match="no folder to lie in"):
        begin(ledger_path(), setup())


def test_to_look_makes_no_file(path: Path) -> None:
    assert ledger(path).entries == () and "no experiments yet" in repr(ledger(path))
    assert "no experiments yet" in ledger(path)._repr_html_()
    assert not path.exists()


def test_it_is_write_ahead_and_says_what_it_is(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_name_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "mine? #1 %41.sqlite3"
    begin(path, setup())
    assert path.exists() and len(ledger(path).entries) == 1


# ---- how it reads ----


def test_the_table_in_text(filled: Path) -> None:
    head, first, *others = repr(ledger(filled)).splitlines()
    assert head.split() == " ".join(HEAD).split()
    assert "one | pipe <b>" in first and "333.3 -> 500.0" in first and "1.500 (1.490 to" in first
    assert first.endswith("keep: it is faster, 'surely'")
    for line, word in zip(others, ("revert: wrong results", "failed", "unfinished"), strict=True):
        assert line.endswith(word)
    assert "phase 5 (from phase 3)" in others[1] and "add: mine (from phase 3)" in first


def test_markdown_has_one_line_an_experiment(filled: Path) -> None:
    lines = ledger(filled).markdown().splitlines()
    assert len(lines) == 6
    assert "one \\| pipe <b>" in lines[2]
    for line in lines:
        assert line.replace("\\|", "").count("|") == len(HEAD) + 1


def test_csv_reads_back(filled: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ledger(filled).csv())))
    assert len(rows) == 4 and tuple(rows[0]) == CSV_HEAD
    assert rows[0]["title"] == "one | pipe\n<b>" and float(rows[0]["speedup"]) == 1.5
    assert float(rows[0]["tokens_per_second_after"]) == 500 and rows[0]["rounds"] == "5"
    assert (rows[2]["state"], rows[2]["speedup"], rows[2]["change"]) == ("failed", "", "phase 5")


def test_html_is_escaped(filled: Path) -> None:
    page = ledger(filled).html()
    assert page.startswith("<!doctype html>") and page.count("<tr>") == 5
    assert "one | pipe\n&lt;b&gt;" in page and "<b>" not in page
    entry = ledger(filled).entry(1)._repr_html_()
    assert "&lt;b&gt;" in entry and entry.count("<details>") == 4
    assert "  3.0000     2.0000   1.5000" in entry


def test_an_entry_in_text(filled: Path) -> None:
    shown = repr(ledger(filled).entry(1))
    assert shown.startswith("Experiment 1: one | pipe")
    assert "hypothesis: h" in shown and "predicted:  1.5 times" in shown
    assert "as predicted" in shown and "5 rounds of 4 tokens from position 16 on" in shown
    assert "error:      it did not compile" in repr(ledger(filled).entry(3))
    assert "decision" not in repr(ledger(filled).entry(4))
    assert 'decide("keep" or "revert", why)' in repr(ledger(filled).entry(2))


def test_the_plot_has_a_panel_a_machine(filled: Path) -> None:
    other = begin(filled, setup("five", environment={"device": "another"}))
    finish(filled, other, CHECKS, comparison(10, 20))
    figure = ledger_speeds(ledger(filled))
    titles = {a.text for a in figure.layout.annotations}
    assert {"m, d", "m, another"} <= titles
    after = {t.x[0]: t.y[0] for t in figure.data if t.name in ("keep", "revert", "no difference")}
    assert after == {"1": 500, "5": 50}
    with pytest.raises(LabError, match="no measured experiment"):
        ledger_speeds(ledger(filled.with_name("none.sqlite3")))


# ---- writers that meet, and writers that die ----

WRITER = """
import sys
from pathlib import Path
from test_ledger_writer import CHECKS, begin, comparison, decide, finish, setup
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    number = begin(path, setup(f"{name} {i}"))
    finish(path, number, CHECKS, comparison())
    decide(path, number, "keep", name)
    print(number, flush=True)
begin(path, setup(f"{name} in flight"))
print("in flight", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test starts by `start_writer`; none outlives it."""
    # What a writer needs of this file, under a name that no other test module has.
    (tmp_path / "test_ledger_writer.py").write_text(Path(__file__).read_text())
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start_writer(
    writers: list[subprocess.Popen[str]], path: Path, name: str, count: int
) -> subprocess.Popen[str]:
    folders = [str(path.parent), *sys.path]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )  # fmt: skip
    writers.append(process)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_write_at_once(path: Path, writers: list[subprocess.Popen[str]]) -> None:
    """From the first moment on: both make the file."""
    both = [start_writer(writers, path, name, 25) for name in "ab"]
    for process in both:
        go(process)
    for process in both:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(26)]
        assert printed[-1] == "in flight"
    entries = ledger(path).entries
    assert len(entries) == 52 and len({e.id for e in entries}) == 52
    for name in "ab":
        titles = [e.setup.title for e in entries if e.setup.title.startswith(name)]
        assert titles == [*(f"{name} {i}" for i in range(25)), f"{name} in flight"]
    assert [e.state for e in entries].count("unfinished") == 2
    check_whole(path)


@pytest.mark.parametrize("after", [1, 7, 23])
def test_a_killed_writer_loses_the_experiment_in_flight_alone(
    path: Path, writers: list[subprocess.Popen[str]], after: int
) -> None:
    process = start_writer(writers, path, "a", 10_000)
    go(process)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    told += [int(line) for line in process.stdout.read().splitlines(keepends=True) if "\n" in line]
    whole = [e for e in ledger(path).entries if e.decision is not None]
    assert {e.id for e in whole} >= set(told)
    assert all(len(e.base_ms) == 5 and e.setup.kernels == (KERNEL,) for e in whole)
    rest = [e for e in ledger(path).entries if e not in whole]
    assert len(rest) <= 1
    assert all(e.setup.kernels == (KERNEL,) for e in rest)
    check_whole(path)
    finish(path, begin(path, setup("next")), CHECKS, comparison())


def test_an_experiment_killed_in_the_middle_stays_as_unfinished(
    path: Path, writers: list[subprocess.Popen[str]]
) -> None:
    process = start_writer(writers, path, "a", 1)
    go(process)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["1\n", "in flight\n"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    one, two = ledger(path).entries
    assert one.decision == "keep" and two.state == "unfinished"
    assert two.kernel("add").source == KERNEL.source
    assert repr(ledger(path)).endswith("unfinished")


# ---- old files ----

STEP = ("ALTER TABLE experiments ADD COLUMN mood TEXT", "UPDATE experiments SET mood = title")


def test_an_old_ledger_is_brought_up(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ledger(filled).entries
    monkeypatch.setattr(ledger_file, "MIGRATIONS", (*MIGRATIONS, STEP))
    assert ledger(filled).entries == before
    with closing(sqlite3.connect(filled)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
        assert db.execute("SELECT mood FROM experiments WHERE id = 2").fetchone() == ("two",)
    begin(filled, setup("five"))
    assert len(ledger(filled).entries) == 5


def test_a_ledger_of_the_first_version_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did not know of a launch is what every launch was then."""
    with monkeypatch.context() as then:
        then.setattr(ledger_file, "MIGRATIONS", MIGRATIONS[:1])
        with ledger_file.opened(path) as db:
            db.execute(
                "INSERT INTO experiments (state, started, title, hypothesis, predicted, baseline, phase, model,"
                " environment, position, tokens) VALUES"
                " ('unfinished', '2026-01-01 00:00:00', 't', 'h', 1.5, '3', NULL, 'm', '{\"device\": \"d\"}', 16, 4)"
            )
            row = (1, "add", "mine", 256, 4, None, "b\nc\n", "elementwise", "a\nc\n")
            db.execute("INSERT INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    assert ledger(path).entry(1).setup == setup()
    wide = replace(KERNEL, grid=7, cooperative=True)
    begin(path, setup(kernels=(wide,)))
    assert ledger(path).entry(2).kernel("add") == wide


def test_a_step_that_fails_changes_nothing(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ledger(filled).entries
    monkeypatch.setattr(
        ledger_file, "MIGRATIONS", (*MIGRATIONS, (*STEP, "UPDATE missing SET a = 1"))
    )
    with pytest.raises(LabError, match="no such table"):
        ledger(filled)
    monkeypatch.undo()
    assert ledger(filled).entries == before
    with closing(sqlite3.connect(filled)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(experiments)")]
    assert "mood" not in columns


def test_a_later_ledger_is_left_alone(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as db:
        db.execute("PRAGMA user_version = 99")
    before = filled.read_bytes()
    for touch in (lambda: ledger(filled), lambda: begin(filled, setup())):
        with pytest.raises(LabError, match=r"a later version of the lab \(schema 99"):
            touch()
    assert filled.read_bytes() == before


# ---- files that are no ledger, or not whole ----


@pytest.mark.parametrize("content", [b"notes of mine\n" * 100, b"SQLite format 3\0" + b"\7" * 5000])
def test_a_file_of_another_kind_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for touch in (lambda: ledger(path), lambda: begin(path, setup())):
        with pytest.raises(LabError, match="is damaged, or no ledger, and was left as it is"):
            touch()
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (name)")
        db.commit()
    before = path.read_bytes()
    for touch in (lambda: ledger(path), lambda: begin(path, setup())):
        with pytest.raises(LabError, match="a database of another program"):
            touch()
    assert path.read_bytes() == before


def test_a_ledger_cut_short_is_left_alone(filled: Path) -> None:
    whole = filled.read_bytes()
    filled.write_bytes(whole[: len(whole) // 2])
    before = filled.read_bytes()
    for touch in (lambda: ledger(filled), lambda: begin(filled, setup())):
        with pytest.raises(LabError, match="is damaged"):
            touch()
    assert filled.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        ("UPDATE experiments SET environment = '{'", "Expecting"),
        ("UPDATE experiments SET checks = '{\"a\": 1}' WHERE id = 1", "unexpected keyword"),
        ("UPDATE experiments SET title = CAST(x'FF' AS TEXT)", "UTF-8"),
        ("UPDATE experiments SET title = x'FF'", "bytes in the place of a text"),
        ("UPDATE experiments SET speedup = 'fast' WHERE id = 1", "could not convert"),
        ("UPDATE kernels SET source = CAST(x'FF' AS TEXT)", "UTF-8"),
        ("UPDATE samples SET base_ms = 'long'", "could not convert"),
        ("ALTER TABLE experiments RENAME COLUMN title TO titel", "No item"),
        ("DROP TABLE samples", "no such table"),
    ],
)
def test_damage_within_a_text_is_a_sentence(filled: Path, damage: str, word: str) -> None:
    """SQLite takes such a file for whole."""
    with closing(sqlite3.connect(filled)) as db:
        db.execute(damage)
        db.commit()
    with pytest.raises(LabError, match=f"is damaged.*{word}"):
        ledger(filled)


def test_damage_that_sqlite_itself_cannot_quote_is_a_sentence(filled: Path) -> None:
    whole = filled.read_bytes()
    damaged = whole.replace(b"CREATE TABLE samples", b"CREATE TABL\xff samples")
    assert damaged != whole
    filled.write_bytes(damaged)
    with pytest.raises(LabError, match="is damaged"):
        ledger(filled)
    assert filled.read_bytes() == damaged


def test_damage_anywhere_is_a_sentence(filled: Path) -> None:
    """Bytes are overwritten at random places: the ledger reads, or says what is wrong, and nothing else happens."""
    whole = filled.read_bytes()
    rng = random.Random(5)
    told = 0
    for _ in range(150):
        damaged = bytearray(whole)
        start = rng.randrange(len(whole))
        for i in range(start, min(len(whole), start + rng.choice((1, 4, 100, 3000)))):
            damaged[i] = rng.randrange(256)
        filled.write_bytes(damaged)
        try:
            found = ledger(filled)
            text = repr(found) + found.markdown() + found.csv() + found.html()
            assert text + "".join(map(repr, found.entries))
        except LabError as error:
            told += 1
            assert str(filled) in str(error)
        finally:
            for beside in ("-wal", "-shm", "-journal"):
                filled.with_name(filled.name + beside).unlink(missing_ok=True)
    assert told > 20


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    for touch in (lambda: ledger(tmp_path), lambda: begin(tmp_path, setup())):
        with pytest.raises(LabError, match="cannot be opened"):
            touch()


def test_a_lock_that_is_never_released_is_a_sentence(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_file, "WAIT", 0.1)
    with closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(ledger(filled).entries) == 4  # readers do not wait
        with pytest.raises(LabError, match="in use by another process"):
            begin(filled, setup())


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """A folder that all may enter, for somebody who is not root: root may write wherever it likes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
        if os.geteuid() != Path(made).stat().st_uid:
            os.setresuid(0, 0, 0)
        Path(made).chmod(0o755)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_file_that_may_not_be_written_is_read(
    unprivileged_folder: Path, folder_mode: int
) -> None:
    path = unprivileged_folder / "l.sqlite3"
    finish(path, begin(path, setup()), CHECKS, comparison())
    before, entries = path.read_bytes(), ledger(path).entries
    path.chmod(0o444)
    unprivileged_folder.chmod(folder_mode)
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 0)
    assert ledger(path).entries == entries
    with pytest.raises(LabError, match="cannot be written"):
        begin(path, setup())
    assert path.read_bytes() == before
