"""What chapter 06 says of counts and of recorded runs, and that its tables read a run of the measurement."""

import csv
import json
from pathlib import Path

import nbformat
import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.errors import LabError
from sovereign_lab.measure.ladder import LadderRun
from sovereign_lab.measure.roofline import find_gpu, floor
from sovereign_lab.measure.streams import MODES, Schedule, measure, record, schedule
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic
from sovereign_lab.notebook import runs, streams
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.side_by_side import calls_of

GEMV = recorded_run("2026-11-30-sm_90-gemv_q4_0")
PASSES = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts")


def test_what_the_seed_lost(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open() as file:
        rows = {r["phase"]: r for r in csv.DictReader(file)}
    before, after = (1e3 / float(rows[p]["tokens_per_second"]) for p in "34")
    assert (rows["3"]["ms_per_forward"], rows["3"]["tokens_per_second"]) == ("14.96", "66.29")
    assert (rows["4"]["ms_per_forward"], rows["4"]["note"]) == (
        "",
        "about; reverted (Windows, WDDM)",
    )
    assert [PHASES[p].seed_tokens_per_second for p in "34"] == [66.29, 56.8]
    assert (round(after - before, 2), round(1e3 * (after - before) / 22)) == (2.52, 115)
    assert round(100 * (after / before - 1)) == 17


def test_schedule_of_a_token() -> None:
    found = {p: schedule(calls_of(p, TINYLLAMA)[0]) for p in "34"}
    assert found["3"] == Schedule(launches=313, forks=0, records=0, waits=0, edges=312)
    # A layer's four edges from the norm to RoPE become six: three out, three in.
    assert found["4"] == Schedule(313, forks=22, records=88, waits=132, edges=312 + 2 * 22)
    assert (found["4"].records + found["4"].waits) / 22 == 10


def test_calls_of_a_shape_are_those_of_an_engine(simt: Device, tmp_path: Path) -> None:
    shape = SyntheticShape(2, 64, 96, 2, 1, 32, 300, context=64)
    model = load_model(write_synthetic(tmp_path / "m.gguf", shape, seed=3))
    for phase in (p for p in PHASES if "gemv_q4_0" in PHASES[p].plan):
        engine = Engine(model, simt, phase, context=16)
        mine, names = calls_of(phase, model.config)
        assert [(c.op, c.branch) for c in mine] == [(c.op, c.branch) for c in engine.decode_calls]
        for call, theirs in zip(mine, engine.decode_calls, strict=True):
            for (key, value), other in zip(call.args.items(), theirs.args.values(), strict=True):
                if isinstance(value, np.ndarray):
                    assert id(value) in names
                elif key != "context":
                    assert value == other, (call.op, key)


def test_blocks_and_how_many_of_them_a_gpu_holds() -> None:
    assert streams.blocks(TINYLLAMA) == {"WQ": 512, "WK": 64, "WV": 64}
    held = {name: streams.held_at_most(streams.card(name), 128) for name in (GPU_NAME, "H200")}
    assert held == {GPU_NAME: 432, "H200": 2112}
    assert streams.block_table(TINYLLAMA).rows[-1] == ["all three", "640", "148%", "30%"]
    with pytest.raises(LabError, match="No GPU 'Voodoo2'"):
        streams.card("Voodoo2")


def test_what_can_be_won_at_most() -> None:
    hidden = streams.hidden_bytes(TINYLLAMA)
    assert hidden == 22 * 2 * 256 * 64 * 18
    gpus = {name: find_gpu(name) for name in (GPU_NAME, "H200")}
    us = {name: round(1e3 * floor(hidden, gpu).ms, 1) for name, gpu in gpus.items() if gpu}
    assert us == {GPU_NAME: 29.0, "H200": 3.0}
    large, small = (
        GEMV.value(f"gemv_q4_0 warp_per_row, {shape}, stream")
        for shape in ("2,048 x 2,048", "256 x 2,048")
    )
    assert 0.32 < small / large < 0.35
    best = streams.best_case(GEMV, PASSES)
    assert (round(best.speedup, 3), round(100 * best.us / best.pass_us, 1)) == (1.057, 5.4)
    assert 90 < best.us / us["H200"] < 100


def test_picture_has_a_box_for_every_launch_and_an_arrow_for_every_edge() -> None:
    figure = streams.schedule_picture(TINYLLAMA, "a title")
    boxes = [t for t in figure.data if t.mode == "lines"]
    assert len(boxes) == 28
    assert [b.text for b in boxes[15:18]] == [
        "WQ: 512 blocks", "WK: 64 blocks", "WV: 64 blocks"
    ]  # fmt: skip
    assert len({(b.x[0], b.y[0]) for b in boxes[14:]}) == 14
    assert sum(1 for a in figure.layout.annotations if a.showarrow) == 13 + 15


@pytest.fixture(scope="module")
def run_of_a_cpu(
    simt: Device, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, streams.StreamsRun]:
    """The measurement on the SIMT device, kept and read: its times mean nothing, its form is that of any run."""
    folder = tmp_path_factory.mktemp("runs")
    shape = SyntheticShape(2, 64, 96, 2, 1, 32, 300, context=64)
    model = load_model(write_synthetic(folder / "m.gguf", shape, seed=3))
    results = list(measure(Engine(model, simt, "3", context=32), rounds=5, tokens=1, replays=1))
    path = folder / "data" / "runs" / "cpu.json"
    record(path, {"device": "a CPU", "date": "2026-11-30"}, "tiny", results)
    with pytest.MonkeyPatch.context() as patch:
        for module in (runs, streams):
            patch.setattr(module, "in_checkout", lambda place: folder / place)
        run = streams.recorded_streams("cpu")
    return path, run


def test_tables_show_what_a_run_holds(
    run_of_a_cpu: tuple[Path, streams.StreamsRun], simt: Device
) -> None:
    path, run = run_of_a_cpu
    kept = json.loads(path.read_text())
    value = {f["what"]: f["value"] for f in kept["figures"]}
    table = streams.verdict_table(run)
    assert [row[-1] for row in table.rows] == [c["verdict"] for c in kept["comparisons"]]
    assert [row[1] for row in table.rows] == [*MODES.values(), MODES[True]]
    assert table.rows[2][0] == "phase 3 against phase 3"
    side = value["rmsnorm, then WQ, WK and WV side by side, in a graph"]
    assert streams.projection_table(run).rows[-1] == [
        "rmsnorm, then all three side by side", f"{side:.2f} us"
    ]  # fmt: skip
    for mode, row in zip(MODES.values(), streams.cost_table(run).rows, strict=True):
        what = f"an empty kernel, then three {{}}, {mode}"
        added = value[what.format("side by side")] - value[what.format("in turn")]
        assert row[:2] == [mode, f"{added:+.2f} us"]
        assert row[3] == f"{value[f'''phase 4, the host's part of a pass, {mode}''']:,.0f} us"
    most = streams.won_at_most(run)
    without = value["phase 3, a pass in a graph, without WK and WV"]
    assert most.pass_us - most.us == pytest.approx(1e3 * without)
    columns = streams.three_columns(run, {"3": 4.0, "4": 5.0}, "tiny", simt.properties)
    assert columns.head[2] == "a CPU, recorded 2026-11-30, in a graph"
    in_graph = next(c for c in kept["comparisons"] if c["mode"] == "in a graph")
    assert columns.rows[2][2] == f"{np.median(in_graph['base_ms']):.2f} ms"
    assert columns.rows[-1][1:] == [
        "0.86 times as fast", columns.rows[-1][2], "the same work, in turn"
    ]  # fmt: skip
    in_turn, least = (
        value[f"rmsnorm, then {what}, in a graph"]
        for what in ("WQ, WK and WV in turn", "WQ and no more")
    )
    hidden = streams.hidden_share(run) * (in_turn - least)
    assert hidden == pytest.approx(in_turn - side)


RUN = streams.recorded_streams()


def test_a_run_that_nobody_recorded_is_not_there() -> None:
    with pytest.raises(LabError, match=r"data/runs/another\.json is not there"):
        streams.recorded_streams("another")


def test_verdicts_of_the_recorded_run() -> None:
    assert (RUN.run.device, RUN.run.model) == ("NVIDIA H200", "synthetic:tinyllama-1.1b")
    assert [(m, c.change, c.verdict, f"{c.speedup:.3f}") for m, c in RUN.comparisons] == [
        ("in a graph", "phase 4", "keep", "1.037"),
        ("launched one by one", "phase 4", "revert", "0.930"),
        ("in a graph", "phase 3", "no difference", "0.999"),
    ]
    (_, graph), (_, loose), (_, control) = RUN.comparisons
    ratios = [np.divide(c.base_ms, c.change_ms) for c in (graph, loose)]
    assert [(r > 1).sum() for r in ratios] == [11, 2] and {r.size for r in ratios} == {11}
    assert control.high < 1, "0.1 % are seen where nothing was changed"
    for times in (graph.base_ms, graph.change_ms, control.base_ms, control.change_ms):
        assert max(times) / min(times) < 1.001
    assert (np.median(graph.base_ms).round(3), np.median(control.base_ms).round(3)) == (
        5.292,
        5.396,
    )


def test_side_by_side_hides_a_part() -> None:
    value = RUN.run.value
    for mode in MODES.values():
        assert value(f"kernels of two branches that saw each other run, {mode}") == 2
    assert value("blocks of it that the GPU holds") == 2112
    least, in_turn, side = (
        value(f"rmsnorm, then {what}, in a graph")
        for what in ("WQ and no more", "WQ, WK and WV in turn", "WQ, WK and WV side by side")
    )
    assert (round(in_turn - least, 1), round(side - least, 1)) == (13.9, 4.8)
    assert round(streams.hidden_share(RUN), 2) == 0.65
    most, won = streams.won_at_most(RUN), streams.won(RUN, "in a graph")
    assert (round(most.us), round(streams.best_case(GEMV, PASSES).us)) == (306, 289)
    assert 0.6 < won / most.us < 0.62
    assert 5 < 100 * most.us / most.pass_us < 6


def test_who_pays_for_a_fork() -> None:
    value = RUN.run.value
    what = "an empty kernel, then three {}, {}"
    in_graph, loose = (
        [value(what.format(how, mode)) for how in ("in turn", "side by side")]
        for mode in MODES.values()
    )
    assert [round(us, 2) for us in in_graph] == [2.78, 2.00]
    assert [round(us) for us in loose] == [79, 94]
    assert round(streams.fork_cost(RUN, "launched one by one")) == 15
    passes = np.array(RUN.comparison("launched one by one").base_ms)
    assert round(float(np.median(passes)), 1) == 7.3
    lost = -streams.won(RUN, "launched one by one")
    assert (round(lost), round(lost / 22)) == (441, 20)
    host = {
        mode: [value(f"phase {p}, the host's part of a pass, {mode}") for p in "34"]
        for mode in MODES.values()
    }
    assert max(host["in a graph"]) < 21
    before, after = host["launched one by one"]
    assert round(after - before) == 443
    assert 1.7 < before / (1e3 * np.median(passes)) < 2, "the host's part, longer than a pass"
    turn, side = (
        RUN.run.figures[f"rmsnorm, then WQ, WK and WV {how}, launched one by one"]
        for how in ("in turn", "side by side")
    )
    assert [round(v) for v in (turn.value, side.value, side.low, side.high)] == [85, 183, 140, 188]


def test_the_gain_at_other_positions_and_with_another_kernel(repository: Path) -> None:
    name = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-greedy-ladder"
    ladder = LadderRun.read(repository / "data" / "runs" / f"{name}.json")
    ms = {
        (p, c): rung.ms_per_forward
        for p in "345"
        for c in (16, 256)
        if (rung := ladder.rung(p, c)) is not None
    }
    assert [round(ms["3", c] / ms["4", c], 3) for c in (16, 256)] == [1.035, 1.026]
    assert [round(ms["3", c] - ms["4", c], 2) for c in (16, 256)] == [0.18, 0.18]
    assert 0.45 < ms["5", 16] / ms["3", 16] < 0.55
    alone = [
        round(GEMV.value(f"gemv_q4_0 coalesced, {rows} x 2,048, stream"), 1)
        for rows in ("256", "2,048")
    ]
    assert alone == [8.5, 8.9]


def test_no_place_is_left_to_fill(repository: Path) -> None:
    cells = nbformat.read(repository / "notebooks/06_three_streams.ipynb", as_version=4).cells
    assert [c.id for c in cells if "<!-- FILL" in c.source or "not recorded" in str(c)] == []
