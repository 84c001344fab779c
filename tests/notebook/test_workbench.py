"""The workbench without a page: every button, kernels that hang and crash, and what the page is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.measure import mine
from sovereign_lab.measure.ledger import ledger
from sovereign_lab.notebook.workbench import bench as bench_module
from sovereign_lab.notebook.workbench import workbench
from sovereign_lab.notebook.workbench.bench import CANCELLED, Bench, Cancelled, State
from sovereign_lab.notebook.workbench.page import heat, page
from sovereign_lab.notebook.workbench.widget import Workbench
from sovereign_lab.notebook.workbench.words import progress

RIGHT, WRONG = "x[i] += y[i];", "x[i] += 2 * y[i];"
HANG = "for (volatile int k = 0; k < 2000000000; k = k + 1) {} x[i] += y[i];"
SECONDS = 120


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    bench = Bench("add", model="synthetic:tiny", device="simt")
    yield bench
    bench.close()


@pytest.fixture
def bench(shared: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench as it is at the start, but for its process, which is there already."""
    monkeypatch.setattr(mine, "_KEPT", {})
    assert RIGHT in shared.parent_text
    shared.state = State(shared.parent_text)
    shared._experiment = None
    return shared


def with_line(bench: Bench, line: str) -> str:
    return bench.parent_text.replace(RIGHT, line)


def test_a_right_kernel_is_checked_and_kept(bench: Bench) -> None:
    bench.write(with_line(bench, "x[i] = x[i] + y[i];"), threads=64, rows_per_block=64)
    view = bench.check()
    assert view.card.good and bench.state.checked
    assert view.card.launch == "64 threads a block, 64 rows a block"
    assert (bench.state.action, bench.state.tone) == ("", "good")
    assert "not measured: Time does that." in bench.state.says
    assert mine.kept() == ()
    assert bench.keep() == mine.find_kept("add", "mine")
    assert bench.state.kept and bench.state.says == "Kept as add:mine."
    again = Bench("add", "mine", name="other")
    assert (again.state.text, again.like, again.state.threads) == (
        bench.state.text,
        "elementwise",
        64,
    )


def test_a_wrong_kernel_is_not_kept(bench: Bench) -> None:
    bench.write(with_line(bench, WRONG))
    assert bench.check().card.verdict.startswith("It is wrong")
    with pytest.raises(LabError, match=r"not kept, since it is not good\. It is wrong"):
        bench.keep()
    assert mine.kept() == ()


def test_a_text_that_was_edited_behind_its_check_is_not_kept(bench: Bench) -> None:
    with pytest.raises(LabError, match="Check it first"):
        bench.keep()
    bench.check()
    bench.write(bench.state.text + "\n")
    with pytest.raises(LabError, match="Check it first"):
        bench.keep()


def test_errors_stand_on_the_lines_of_the_text(bench: Bench) -> None:
    text = with_line(bench, "x[i] += z[i];")
    bench.write(text)
    bench.check()
    (first, *_) = page(bench)["marks"]
    assert text.splitlines()[first["line"] - 1].strip().endswith("x[i] += z[i];")
    assert "z" in first["says"]
    assert page(bench)["answers"]["compiles"] == "no"


def test_inspect_counts_by_line_as_the_card_does_in_all(bench: Bench) -> None:
    card = bench.inspect().card
    lines = page(bench)["heat"]
    figures = {c.what: c.mine for c in card.counts}
    assert (
        sum(row["sectors"] for row in lines) == figures["load sectors"] + figures["store sectors"]
    )
    assert sum(row["share"] for row in lines) == pytest.approx(1)
    assert {bench.state.text.splitlines()[row["line"] - 1].strip() for row in lines} == {
        next(line.strip() for line in bench.parent_text.splitlines() if RIGHT in line)
    }
    assert "sectors" in lines[0]["words"]
    bench.check()
    assert page(bench)["heat"] == lines  # the counts of the same text stay
    bench.write(bench.state.text + "\n")
    bench.check()
    assert page(bench)["heat"] == []


def test_nothing_is_lost_by_revert(bench: Bench) -> None:
    first, second = with_line(bench, WRONG), with_line(bench, "x[i] -= y[i];")
    bench.write(first)
    bench.revert()
    assert bench.state.text == bench.parent_text
    bench.typed(second, None, None)
    bench.revert()
    assert [t.text for t in bench.state.texts] == [first, second]
    bench.recall(0)
    assert bench.state.text == first
    assert [t.text for t in bench.state.texts] == [second]
    bench.recall(0)
    assert [t.text for t in bench.state.texts] == [first]
    with pytest.raises(LabError, match="There are 1 earlier texts"):
        bench.recall(7)


def start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stage: str
) -> tuple[threading.Thread, list[Exception]]:
    """Check in a thread, and come back when it is at `stage`."""
    there, raised = threading.Event(), list[Exception]()
    monkeypatch.setattr(bench, "changed", lambda s: there.set() if s.stage == stage else None)

    def run() -> None:
        try:
            bench.check()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert there.wait(SECONDS)
    return thread, raised


def test_a_hang_is_cancelled_and_disturbs_no_other_bench(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(with_line(bench, HANG))
    thread, raised = start(bench, monkeypatch, "safe")
    for refused in (bench.check, bench.inspect, bench.time, bench.keep, bench.revert):
        with pytest.raises(LabError, match=r"still at work \(check\): wait for it, or cancel it"):
            refused()
    bench.typed(bench.parent_text, None, None)  # one may type while it is at work
    bench.cancel()
    thread.join(SECONDS)
    assert [type(e) for e in raised] == [Cancelled]
    assert (bench.state.action, bench.state.says) == ("", CANCELLED)
    assert bench.state.text == bench.parent_text
    bench.cancel()  # nothing runs: nothing happens
    assert bench.check().card.good


def test_two_benches_work_at_the_same_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(with_line(bench, HANG))
    thread, _ = start(bench, monkeypatch, "safe")
    other = Bench("add", device="simt", name="other")
    try:
        assert other.check().card.good
        bench.cancel()
        thread.join(SECONDS)
        assert bench.state.says in (CANCELLED, bench.state.card and bench.state.card.verdict)
        assert other.check().card.good
    finally:
        bench.cancel()
        other.close()


def test_a_crash_leaves_the_bench_usable(bench: Bench) -> None:
    bench.write(with_line(bench, "{ volatile int zero = 0; x[i] += y[i] + float(n / zero); }"))
    card = bench.check().card
    assert not card.good and "SIGFPE" in card.verdict
    bench.revert()
    assert bench.check().card.good


def test_a_worker_that_ends_elsewhere_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise LabError("no device here")

    monkeypatch.setattr(bench_module, "attempt", broken)
    with pytest.raises(LabError):
        bench.check()
    assert (bench.state.says, bench.state.tone, bench.state.action) == ("no device here", "bad", "")


def test_a_timing_with_a_prediction_goes_into_the_ledger_and_keep_decides(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOVEREIGN_LEDGER", str(tmp_path / "ledger.sqlite3"))
    with pytest.raises(LabError, match="A prediction has a reason"):
        bench.time(1.5)
    assert bench.state.card is None  # nothing was run for it
    view = bench.time(1.5, "the same instructions")
    assert view.card.alone is not None
    assert "predicted 1.5" in bench.state.says
    assert "the same instructions" in page(bench)["card"]
    bench.keep()
    (entry,) = ledger().entries
    assert entry.decision == "keep"
    assert bench.state.says == f"Kept as add:mine. The ledger says so under {entry.id}."
    bench.revert()  # what is decided stays decided
    assert ledger().entries[0].decision == "keep"


@pytest.mark.parametrize(
    ("doing", "stage", "says"),
    [
        ("Starting the worker", "", "Starting a process for the kernel"),
        ("The call of trial()", "", ""),
        ("The compiler, at kernel mine,", "compiles", "Compiling mine.cu"),
        (
            "Kernel mine <<<(2, 3), 128>>> in the sanitizer",
            "safe",
            "Checking that it is safe: <<<(2, 3), 128>>> in the sanitizer",
        ),
        ("Kernel mine <<<1, 64>>> at n = 7", "right", "Checking that it is right, at n = 7"),
        (
            "Kernel mine <<<1, 64>>>, 8 times, to be timed,",
            "faster",
            "Timing <<<1, 64>>>, in turn with the parent",
        ),
        ("Phase 8b (round 2 of 5)", "faster", "Timing in the engine: Phase 8b, round 2 of 5"),
        ("Loading the model", "", "Loading the model"),
    ],
)
def test_progress_is_told_in_words(doing: str, stage: str, says: str) -> None:
    assert progress(doing, "mine") == (stage, says)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(op="nothing"), "There is no op 'nothing'"),
        (dict(op="add", variant="nothing"), "no variant 'nothing'"),
        (dict(op="add", name="elementwise"), "choose another name"),
        (dict(op="add", phase="99"), "no phase '99'"),
        (dict(op="add", threads=0), "threads is 1 or more"),
    ],
)
def test_what_cannot_be_is_one_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(LabError, match=said):
        Bench(**wrong)


def test_idle_processes_of_benches_used_long_ago_end(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Bench] = []
    monkeypatch.setattr(bench_module, "_USED", [])
    benches = [Bench("add") for _ in range(4)]
    for bench in benches:
        monkeypatch.setattr(bench._worker, "close", lambda bench=bench: closed.append(bench))
    benches[1].state = State("", action="check")
    for bench in benches:
        bench_module._rest_others(bench)
    assert closed == benches[:1]
    benches[1].state = State("")
    bench_module._rest_others(benches[0])
    assert closed == [benches[0], benches[1]]


def test_a_bench_that_is_only_typed_into_ends_the_process_of_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Bench] = []
    monkeypatch.setattr(bench_module, "_USED", [])
    benches = [Bench("add") for _ in range(bench_module.RESTING_WORKERS + 2)]
    for bench in benches:
        monkeypatch.setattr(bench._worker, "start", lambda: None)
        monkeypatch.setattr(bench._worker, "close", lambda bench=bench: closed.append(bench))
        bench.wake()
    assert closed == benches[:1]


# ---- the widget, which has no page here ----


@pytest.fixture
def widget(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    made = Workbench(bench)
    yield made
    monkeypatch.setattr(bench, "close", lambda: None)  # its process serves the other tests
    made.close()


def ask(widget: Workbench, **content: Any) -> list[dict[str, Any]]:
    """What is sent to the page until the request is done."""
    sent: list[dict[str, Any]] = []
    done = threading.Event()

    def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if "done" in message:
            done.set()

    widget.send = send
    widget._asked(widget, {"id": 7, **content}, [])
    assert done.wait(SECONDS)
    return sent


def test_a_widget_s_buttons_are_the_bench_s(widget: Workbench) -> None:
    bench = widget.bench
    assert ask(widget, do="check", text=with_line(bench, WRONG)) == [{"heard": 7}, {"done": 7}]
    assert widget.now["tone"] == "bad" and widget.shown["good"] is False
    (_, refused, _) = ask(widget, do="keep", text=bench.state.text)
    assert refused["refused"].startswith("It is not kept")
    ask(widget, do="revert")
    assert widget.text == bench.parent_text
    ask(widget, do="recall", number=0)
    assert widget.text == with_line(bench, WRONG)
    assert ask(widget, do="dance")[1] == {"refused": "The workbench knows no action 'dance'."}


def test_progress_does_not_overwrite_what_is_being_typed(widget: Workbench) -> None:
    bench = widget.bench
    widget.text = "being typed"
    assert bench.state.text == "being typed"
    bench.state = State("older", says="at work")  # a thread that has not seen it yet
    bench.changed(bench.state)
    assert widget.text == "being typed"
    bench.write("placed")
    assert widget.text == "placed"


def test_without_a_script_there_is_a_picture(widget: Workbench) -> None:
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    html = data["text/html"]
    assert ">__global__</span>" in html and "color:" in html
    assert "<script" not in html and "<style" not in html
    assert widget.bench.parent_text in data["text/plain"]
    widget.bench.write("// <b>&")
    assert "&lt;b&gt;&amp;" in widget._repr_mimebundle_()[0]["text/html"]


def test_workbench_opens_a_bench() -> None:
    made = workbench("gemv_q4_0", "1", threads=64, rows_per_block=2)
    assert made.bench.like == "warp_per_row"
    assert (made.shown["threads"], made.shown["rowsPerBlock"]) == (64, 2)
    assert made.bench.state.card is None
    made.close()


def test_lines_that_nothing_was_counted_for_have_no_heat() -> None:
    assert heat(()) == []
