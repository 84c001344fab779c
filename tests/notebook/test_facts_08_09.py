"""What chapters 08 and 09 say of counts and of recorded runs is what the traces and the runs say."""

import csv
from pathlib import Path

import numpy as np
import pytest
from edited_cells import a_row

from sovereign_lab.errors import LabError
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.roofline import GPU, find_gpu, floor, token_bytes
from sovereign_lab.notebook import fusion
from sovereign_lab.notebook.array_traffic import array_traffic, traffic_table
from sovereign_lab.notebook.op_times import forward_ms, op_table, op_times
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA

RUN = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts")
LADDER = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-ladder").ladder()
POSITIONS = (16, 256, 512, 1024, 2048, 4000)
HEAD = token_bytes(TINYLLAMA).head


def gpu(name: str) -> GPU:
    found = find_gpu(name)
    assert found
    return found


H200, SEED_GPU = gpu(RUN.device), gpu(GPU_NAME)


def us(phase: str, name: str) -> float:
    return op_times(RUN, phase)[name].us


# ---- 08 ----


def test_the_seed_gained_as_chapters_say(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open() as file:
        rows = {r["phase"]: r for r in reversed(list(csv.DictReader(file)))}
    speed = {p: float(rows[p]["tokens_per_second"]) for p in "567"}
    assert speed == {"5": 109.24, "6": 111.98, "7": 143.46}
    assert [rows[p]["ms_per_forward"] for p in "567"] == ["9.03", "8.79", "6.84"]
    assert round(speed["6"] / speed["5"], 3) == 1.025
    assert round(speed["7"] / speed["6"], 2) == 1.28
    assert round(1e6 / speed["5"] - 1e6 / speed["6"]) == 224


def test_the_h200_gained_as_chapters_say() -> None:
    assert round(LADDER["6"] / LADDER["5"], 3) == 1.035
    assert round(LADDER["7"] / LADDER["6"], 2) == 1.09


def test_bytes_saved_by_fusing() -> None:
    saved = fusion.activation_bytes(TINYLLAMA.ffn_dim, TINYLLAMA.dim)
    assert list(saved.values()) == [8192, 45056, 45056]
    a_token = 22 * sum(saved.values())
    assert a_token == 2_162_688
    assert round(100 * a_token / token_bytes(TINYLLAMA).at(0), 2) == 0.27
    assert round(1e3 * floor(a_token, H200).ms, 1) == 0.5
    assert round(1e3 * floor(a_token, SEED_GPU).ms, 1) == 4.8
    assert fusion.weight_bytes(TINYLLAMA) == 285_474_816
    assert round(1e3 * floor(fusion.weight_bytes(TINYLLAMA), H200).ms) == 67


def test_trace_confirms_the_bytes_and_counts_the_requests() -> None:
    rows = 64
    launches = fusion.traces(rows, 64)
    loads = {name: array_traffic(t) for name, t in launches.items()}
    stores = {name: array_traffic(t, "store") for name, t in launches.items()}
    touched = [
        loads["up"]["x"].distinct_bytes,
        stores["gate"]["y"].distinct_bytes + stores["up"]["y"].distinct_bytes,
        sum(t.distinct_bytes for t in loads["swiglu"].values()),
    ]
    assert touched == list(fusion.activation_bytes(rows, 2048).values())
    assert loads["fused"]["W_gate"] == loads["gate"]["W"]
    assert loads["fused"]["W_up"] == loads["up"]["W"]
    assert loads["fused"]["x"] == loads["gate"]["x"]
    gate = launches["gate"]
    assert round(100 * loads["gate"]["x"].sectors / gate.sectors("load")) == 62
    assert gate.requests("load") == 3 * rows * 64
    assert launches["fused"].requests("load") == 5 * rows * 64
    separate = sum(launches[name].sectors("load") for name in ("gate", "up", "swiglu"))
    assert round(100 * (1 - launches["fused"].sectors("load") / separate)) == 31
    assert fusion.request_table(launches).rows[-1][:3] == ["fused / the three", "0.833", "0.689"]


def test_time_saved_by_fusing_and_where() -> None:
    pair = us("5", "gemv_q4_0") - us("6", "gemv_q4_0")
    before, after = op_times(RUN, "5"), op_times(RUN, "6")
    assert sum(t.launches for t in before.values()) == 313
    assert sum(t.launches for t in after.values()) == 269
    assert round(pair) == 487
    assert round(us("5", "swiglu")) == 27
    assert round(us("6", "ffn_swiglu")) == 420
    assert round(pair - us("6", "ffn_swiglu")) == 68
    assert round(pair + us("5", "swiglu") - us("6", "ffn_swiglu")) == 95
    assert round(us("5", "swiglu") / 22, 2) == 1.25
    assert round(us("5", "add") / 44, 2) == 0.99
    assert round(us("6", "add")) == 44
    assert (round(pair / 22, 1), round(us("6", "ffn_swiglu") / 22, 1)) == (22.2, 19.1)
    assert round(pair + us("5", "swiglu")) == 515
    assert round(100 * 95 / 515) == 18
    assert round(100 * 1e3 * floor(fusion.weight_bytes(TINYLLAMA), H200).ms / 420) == 16
    others = [us("6", name) for name in ("gemv_q4_0", "logits", "attention")]
    assert [round(t) for t in others] == [1230, 295, 110]


def test_what_phase_6_saves_does_not_grow_with_the_context() -> None:
    saved = [1e3 * (forward_ms(RUN, "5", p) - forward_ms(RUN, "6", p)) for p in POSITIONS]
    assert all(98 < t < 104 for t in saved)
    assert round(saved[0]) == 99
    assert round(100 * saved[0] / 1e3 / forward_ms(RUN, "5"), 1) == 3.8
    assert round(100 * saved[-1] / 1e3 / forward_ms(RUN, "5", 4000), 1) == 0.3


def test_tables_of_phases_leave_an_absent_op_empty() -> None:
    rows = {row[0]: row[1:] for row in op_table(RUN, ("5", "6")).rows}
    assert rows["swiglu"] == ["22", "27.4 us", "", "", "-27 us"]
    assert rows["ffn_swiglu"] == ["", "", "22", "419.7 us", "+420 us"]
    assert rows["rope_kv"][-1] == "0 us"
    assert rows["all of these"][-1] == "-94 us"
    assert rows["the forward pass"] == ["", "2,639.1 us", "", "2,539.8 us", "-99 us"]
    assert fusion.saving_by_position(RUN, "6", "7").rows[0][3:] == ["228 us", "9.0 %"]


def test_two_rows_a_warp_ask_for_half_of_x() -> None:
    row = a_row("08", 704)
    assert row["load requests"] == (40, 36)
    assert row["load sectors"] == (71, 55)
    steps, x = 8, 4  # blocks of a row, and sectors of a request for x
    before, after = row["load sectors"]
    assert before - after == steps * x / 2
    assert row["shuffles"] == (steps + 2 * 5, steps + 2 * 5)


# ---- 09 ----


def test_head_is_262_mb_and_a_third_of_a_token() -> None:
    assert HEAD == 262_144_000
    assert 0.32 < HEAD / token_bytes(TINYLLAMA).at(0) < 0.34


def test_logits_alone_before_and_after() -> None:
    before, after = us("6", "logits"), us("7", "logits")
    assert (round(before), round(after)) == (295, 63)
    least = 1e3 * floor(HEAD, H200).ms
    assert (round(100 * least / before), round(100 * least / after)) == (21, 97)
    assert round(8 * HEAD / before / 1e3, -2) == 7100
    assert round(before * 1e-6 * H200.bandwidth * 1e3, -1) == 1260
    assert 0.78 < 1 - after / before < 0.8  # "nearly four fifths of that is gone"


def test_the_models_gain_is_that_of_the_logits() -> None:
    saved = [1e3 * (forward_ms(RUN, "6", p) - forward_ms(RUN, "7", p)) for p in POSITIONS]
    assert all(224 <= round(t) <= 229 for t in saved)
    assert us("6", "logits") - us("7", "logits") == pytest.approx(saved[0], rel=0.03)
    assert round(100 * us("6", "logits") / 1e3 / forward_ms(RUN, "6"), 1) == 11.6
    assert round(100 * saved[0] / 1e3 / forward_ms(RUN, "6"), 1) == 9.0


def test_bounds_for_the_seeds_gpu() -> None:
    floor_ms = floor(HEAD, SEED_GPU).ms
    before = 8.79 - 6.84 + floor_ms
    layers = token_bytes(TINYLLAMA).layers
    assert round(before, 2) == 2.54
    assert round(100 * before / 8.79) == 29
    assert round(before / floor_ms, 1) == 4.3
    assert round((8.79 - before) / floor(layers, SEED_GPU).ms, 1) == 5.1
    assert round(100 * (8.79 - 6.84) / 8.79) == 22
    here = us("6", "logits") / 1e3
    rest = forward_ms(RUN, "6") - here
    assert round(rest / floor(layers, H200).ms) == 18
    assert round(H200.bandwidth / SEED_GPU.bandwidth, 1) == 9.5
    assert round(before / here, 1) == 8.6
    assert round((8.79 - before) / rest, 1) == 2.8


def test_eight_lanes_a_row_read_whole_sectors() -> None:
    row = a_row("09", 2048)
    assert row["load requests"] == (16, 16)
    w = 256 / 8  # each sector of W once
    assert row["load sectors"] == (w + 32, w + 8)
    assert row["shuffles"] == (5, 3 / 4)


# ---- traffic by array ----

COPY = """
extern "C" __global__ void copy(const float* from, float* to) {
  __shared__ float tile[32];
  tile[threadIdx.x] = from[threadIdx.x * 2];
  to[threadIdx.x] = tile[threadIdx.x] + from[0];
}
"""


def test_traffic_is_told_by_array_and_leaves_shared_memory_out() -> None:
    args = {"from": np.zeros(64, np.float32), "to": np.zeros(32, np.float32)}
    traced = trace(COPY, 1, 32, args)
    read, written = array_traffic(traced), array_traffic(traced, "store")
    assert {name: (t.requests, t.sectors, t.distinct) for name, t in read.items()} == {
        "from": (2, 9, 8)
    }
    assert written["to"].sectors_per_request == 4
    assert written["to"].distinct_bytes == 128
    assert [row[1] for row in traffic_table({"copy": traced}).rows] == ["reads from", "writes to"]
    with pytest.raises(LabError, match="'load' or a 'store'"):
        array_traffic(traced, "atomic")
