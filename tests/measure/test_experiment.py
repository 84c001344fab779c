"""Experiments: what is checked, proposed and written down; no test asserts a time."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from sovereign_lab.engine import Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure import mine
from sovereign_lab.measure.experiment import Experiment, experiment, progress
from sovereign_lab.measure.experiment.job import check
from sovereign_lab.measure.ledger import ledger
from sovereign_lab.measure.mine import edit, with_kernels
from sovereign_lab.measure.timing import GREEDY
from sovereign_lab.measure.worker import Worker, WorkerEnded
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

COALESCED = op("gemv_q4_0").variant("coalesced").source


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=64)
    return write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=3)


@pytest.fixture(scope="module")
def engine(tiny: Path, simt: Any) -> Engine:
    return Engine(load_model(tiny), simt, "3")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOVEREIGN_LEDGER", str(tmp_path / "l.sqlite3"))
    monkeypatch.setenv("SOVEREIGN_DEVICE", "simt")
    return tmp_path / "l.sqlite3"


class Here(Worker):
    """Runs calls in this process, where a test can replace functions."""

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("on_progress", None)
        return function(*args, **kwargs)


@pytest.fixture
def here() -> Here:
    return Here("simt")


def timed(monkeypatch: pytest.MonkeyPatch, base_ms: float, change_ms: float) -> list[str]:
    """Give engines times by which kernel of the GEMV they have; the order of the calls is kept."""
    seen: list[str] = []

    def fake(e: Engine, position: int, tokens: int, sampling: Sampling = GREEDY) -> float:
        name = e.kernels["gemv_q4_0"][0].name
        seen.append(name)
        ms = base_ms if name == "warp_per_row" else change_ms
        return ms * (1 + 0.001 * (len(seen) % 5))

    monkeypatch.setattr("sovereign_lab.measure.experiment.job.decode_ms", fake)
    return seen


@pytest.mark.parametrize(
    ("before", "after", "verdict", "words"),
    [
        (3.0, 2.0, "keep", "as predicted"),
        (4.0, 2.0, "keep", "more than predicted"),
        (2.0, 2.5, "revert", "less than predicted"),
        (2.0, 2.0, "no difference", "less than predicted"),
    ],
)
def test_a_change_is_measured_and_proposed(
    tiny: Path, engine: Engine, here: Here, monkeypatch: pytest.MonkeyPatch,
    before: float, after: float, verdict: str, words: str,
) -> None:  # fmt: skip
    seen = timed(monkeypatch, before, after)
    asked = experiment(
        "reads that meet", "32 neighbours are one request", predict=1.5, baseline="3",
        change={"gemv_q4_0": edit("gemv_q4_0", COALESCED, "warp_per_row")}, model=tiny, rounds=7, tokens=5,
    )  # fmt: skip
    assert "not run yet" in repr(asked)
    entry = asked.run(here)
    assert (entry.state, entry.verdict, entry.against_prediction) == ("measured", verdict, words)
    assert entry.speedup == pytest.approx(before / after, rel=0.01)
    assert entry.low is not None and entry.speedup is not None and entry.high is not None
    assert entry.low <= entry.speedup <= entry.high
    base, mine_ = "warp_per_row", "mine"
    pair = [base, mine_, mine_, base]
    assert seen == [base, base, mine_, *pair * 3, base, mine_]
    assert len(entry.base_ms) == len(entry.change_ms) == 7
    kernel = entry.kernel("gemv_q4_0")
    assert kernel.source == COALESCED and kernel.base_name == base
    assert kernel.base_source == op("gemv_q4_0").variant(base).source
    assert (kernel.threads, kernel.rows_per_block, kernel.shared_bytes) == (128, 4, None)
    assert entry.checks is not None and entry.checks.ok and entry.checks.logits_error < 1e-3
    assert entry.checks.tokens_same == entry.checks.tokens == 16
    assert entry.setup.environment["device"].startswith("SIMT device")
    assert engine.device.properties.times in repr(entry)
    assert ledger().entries == (entry,)
    decided = asked.decide("revert", "not worth it")
    assert (decided.decision, decided.why) == ("revert", "not worth it")
    assert repr(asked) == repr(decided) == repr(ledger().entry(1))


def test_a_phase_is_a_change(tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 3.0, 2.0)
    asked = experiment("t", "h", predict=1.2, phase="5", model=tiny, rounds=5, tokens=3)
    entry = asked.run(here)
    assert entry.setup.baseline == "3" and entry.setup.change == "phase 5"
    assert [(k.op, k.base_name, k.name) for k in entry.setup.kernels] == [
        ("gemv_q4_0", "warp_per_row", "coalesced")
    ]
    assert entry.verdict == "keep"


@pytest.mark.parametrize(
    ("asked", "tokens", "rounds"), [({}, 2, 5), ({"tokens": 3}, 3, 5), ({"rounds": 7}, 2, 7)]
)
def test_the_simt_device_is_given_few_passes(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, int], tokens: int, rounds: int,
) -> None:  # fmt: skip
    timed(monkeypatch, 3.0, 2.0)
    entry = experiment("t", "h", predict=1.2, phase="5", model=tiny, **asked).run(here)  # type: ignore[arg-type]
    assert (entry.setup.tokens, len(entry.base_ms)) == (tokens, rounds)


def test_a_measurement_outlives_a_ledger_that_cannot_be_written(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 3.0, 2.0)
    asked = experiment("t", "h", predict=1.2, phase="5", model=tiny, rounds=5, tokens=3)
    with pytest.raises(LabError, match="run the experiment first"):
        asked.save()
    with monkeypatch.context() as broken:
        where = "sovereign_lab.measure.experiment.finish"

        def full(*args: object) -> None:
            raise LabError("the disk is full.")

        broken.setattr(where, full)
        with pytest.raises(LabError, match=r"the disk is full.* call its save\(\)"):
            asked.run(here)
    assert asked.entry is None and ledger().entries[0].state == "unfinished"
    entry = asked.save()
    assert entry.state == "measured" and entry.verdict == "keep"
    assert ledger().entries == (entry,)


def test_a_fused_op_has_no_kernel_before_it(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 3.0, 2.0)
    entry = experiment("t", "h", predict=1.2, phase="6", model=tiny, rounds=5, tokens=3).run(here)
    assert entry.setup.baseline == "5"
    assert [(k.op, k.base_name, k.base_source) for k in entry.setup.kernels] == [
        ("ffn_swiglu", "", "")
    ]
    assert "<details>" in entry._repr_html_()


def test_wrong_results_are_not_timed(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "- 8" in COALESCED
    seen = timed(monkeypatch, 3.0, 2.0)
    change = {"gemv_q4_0": COALESCED.replace("- 8", "- 7")}
    asked = experiment("t", "h", predict=2, baseline="3", change=change, model=tiny)
    entry = asked.run(here)
    assert (entry.state, entry.verdict, entry.base_ms) == ("wrong", "revert", ())
    assert entry.checks is not None and not entry.checks.ok and entry.checks.logits_error > 0.01
    assert "mine" not in seen
    assert "revert: wrong results" in repr(ledger())
    assert asked.decide("revert", "it was wrong").decision == "revert"


def test_nan_is_wrong(engine: Engine) -> None:
    source = op("rmsnorm").variant("block").source
    assert "weight[i]" in source
    broken = with_kernels(
        engine, {"rmsnorm": edit("rmsnorm", source.replace(" * weight[i]", " * sqrtf(-1.0f)"))}
    )
    found = check(engine, broken)
    assert not found.ok and found.logits_error == np.inf


@pytest.mark.parametrize(
    ("op_name", "change"),
    [
        ("argmax", ("*best = index", "*best = index ? index - 1 : 1")),
        ("argmax", ("*best = index", "*best = -1")),
        ("sample", ("*seed, *position", "*seed, *position + 1")),
    ],
)
def test_tokens_that_do_not_follow_from_the_logits_are_wrong(
    engine: Engine, op_name: str, change: tuple[str, str]
) -> None:
    """Logits do not show a wrong choice: both ops come behind them."""
    source = next(iter(op(op_name).variants.values())).source
    assert source.count(change[0]) >= 1
    broken = with_kernels(engine, {op_name: edit(op_name, source.replace(*change))})
    found = check(engine, broken, draws=op_name == "sample")
    assert found.wrong_choices > 0 and not found.ok
    assert "do not follow from the logits" in str(found)


@pytest.mark.parametrize("variant", list(op("sample").variants))
def test_our_own_draws_follow_from_the_logits(engine: Engine, variant: str) -> None:
    found = check(engine, with_kernels(engine, {"sample": variant}), draws=True)
    assert found.ok and found.wrong_choices == 0


def test_a_phase_that_rounds_to_int8_is_right(engine: Engine) -> None:
    found = check(engine, engine.with_phase("10"))
    assert found.ok
    assert found.logits_error > 10 * found.base_logits_error  # the allowance is needed


def test_a_kernel_kept_by_name(tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "_KEPT", {})
    with pytest.raises(LabError, match="none was kept"):
        experiment("t", "h", predict=1.5, change={"gemv_q4_0": "mine"})
    mine.keep(edit("gemv_q4_0", COALESCED, "coalesced", threads=64, rows_per_block=2))
    timed(monkeypatch, 3.0, 2.0)
    asked = experiment(
        "t", "h", predict=1.5, baseline="3", change={"gemv_q4_0": "mine"}, model=tiny, tokens=2
    )
    kernel = asked.run(here).kernel("gemv_q4_0")
    assert (kernel.name, kernel.threads, kernel.rows_per_block) == ("mine", 64, 2)


def test_a_launch_of_its_own_is_run_and_written_down(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 3.0, 2.0)
    source = """#include <cooperative_groups.h>
extern "C" __global__ void add(float* x, const float* y, int n) {
  cooperative_groups::this_grid().sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] += y[i];
}
"""
    made = edit("add", source, threads=32, grid=2, cooperative=True)
    entry = experiment("t", "h", predict=1, change={"add": made}, model=tiny).run(here)
    assert entry.checks is not None and entry.checks.ok
    kernel = ledger().entry(1).kernel("add")
    assert (kernel.threads, kernel.grid, kernel.cooperative) == (32, 2, True)
    assert "add: mine, 32 threads a block, a grid of 2, cooperative" in entry._repr_html_()


def test_a_failure_is_written_down_and_raised(tiny: Path, here: Here) -> None:
    def ask(source: str) -> Experiment:
        return experiment("t", "h", predict=1.5, change={"gemv_q4_0": source}, model=tiny)

    with pytest.raises(LabError, match="mistake"):
        ask(COALESCED + "\nmistake").run(here)
    (failed,) = ledger().entries
    assert failed.state == "failed" and failed.error is not None and "mistake" in failed.error
    assert failed.kernel("gemv_q4_0").source.endswith("mistake")
    with pytest.raises(LabError, match="no verdict"):
        failed.decide("keep", "why not")


def test_an_interrupt_is_written_down(
    tiny: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("sovereign_lab.measure.experiment.job.decode_ms", interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiment("t", "h", predict=1.5, phase="5", model=tiny).run(here)
    assert ledger().entry(1).error == "It was interrupted."


def test_a_ledger_that_cannot_be_written_stops_it_before_anything_runs(
    tiny: Path, place: Path, here: Here
) -> None:
    place.write_text("my own notes, long enough to be no database at all\n" * 100)
    before = place.read_bytes()

    def never(*args: object) -> None:
        raise AssertionError("it ran")

    here.call = never  # type: ignore[method-assign, assignment]
    with pytest.raises(LabError, match="damaged, or no ledger"):
        experiment("t", "h", predict=1.5, phase="5", model=tiny).run(here)
    assert place.read_bytes() == before


def test_in_a_worker_of_its_own(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: a kernel is measured, and one that never ends costs its process alone."""
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, mininterval=0))
    asked = experiment("t", "h", predict=1.5, phase="5", model=tiny, rounds=5, tokens=2)
    entry = asked.run(progress=True)
    assert re.search(r"Phase [35].* 0/5 .*[1-4]/5 ", capsys.readouterr().err, re.DOTALL)
    assert entry.state == "measured" and entry.verdict in ("keep", "revert", "no difference")
    assert all(ms > 0 for ms in (*entry.base_ms, *entry.change_ms))
    first = COALESCED.index("{", COALESCED.index("__global__")) + 1
    hang = COALESCED[:first] + "\n  volatile int on = 1; while (on);" + COALESCED[first:]
    with pytest.raises(WorkerEnded, match="Phase 3 with gemv_q4_0:mine had not ended"):
        experiment(
            "t", "h", predict=1.5, baseline="3", change={"gemv_q4_0": hang}, model=tiny, time_limit=1
        ).run()  # fmt: skip
    assert [e.state for e in ledger().entries] == ["measured", "failed"]
    assert "the time limit" in (ledger().entry(2).error or "")


RUN = """
import sys
from sovereign_lab.measure.experiment import experiment
experiment("t", "h", predict=1.5, phase="5", model=sys.argv[1], rounds=1_000_000, tokens=2).run()
"""


def test_a_killed_process_leaves_its_experiment_unfinished(tiny: Path, place: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tiny)])
    deadline = time.monotonic() + 60
    while not ledger().entries and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    (entry,) = ledger().entries
    assert (entry.state, entry.setup.change, entry.proposal) == (
        "unfinished",
        "phase 5",
        "unfinished",
    )
    assert entry.kernel("gemv_q4_0").source == COALESCED


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (dict(title=" "), "a title and a hypothesis"),
        (dict(hypothesis=""), "a title and a hypothesis"),
        (dict(predict=0), "A prediction is"),
        (dict(predict=float("nan")), "A prediction is"),
        (dict(phase=None), "changes one thing"),
        (dict(change={"gemv_q4_0": "coalesced"}), "changes one thing"),
        (dict(phase="9"), "no phase '9'"),
        (dict(baseline="9"), "no phase '9'"),
        (dict(phase=None, change={"gemm": "coalesced"}), "no op 'gemm'"),
        (dict(phase=None, change={"add": edit("swiglu", "x")}), "one of swiglu, not of add"),
        (dict(phase=None, change={"swiglu": "elementwise"}), "8b does not launch swiglu"),
        (dict(rounds=4), "at least 5 rounds"),
        (dict(tokens=0), "at least 1 token"),
        (dict(position=-1), "from position 0"),
        (dict(model=3), "the model's name"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = dict(title="t", hypothesis="h", predict=1.5, phase="5")
    with pytest.raises(LabError, match=message):
        experiment(**(usual | asked))


def test_positions_past_the_context_are_told_before_it_begins(
    tiny: Path, here: Here, place: Path
) -> None:
    with pytest.raises(LabError, match="do not fit"):
        experiment("t", "h", predict=1.5, phase="5", model=tiny, position=63).run(here)
    assert ledger().entries == ()


def test_deciding_comes_after_running() -> None:
    with pytest.raises(LabError, match="run the experiment first"):
        experiment("t", "h", predict=1.5, phase="5").decide("keep", "because")
