"""What chapter 19 says in its prose, held to the traces, the kernels, the reference and the recorded run."""

from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from edited_cells import counts

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.decode import DecodeRun, Times
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.measure.static import nvrtc, sass
from sovereign_lab.models import reference
from sovereign_lab.models.tiles import Q4_0_PAIR
from sovereign_lab.notebook import decode_times, int8_products, tensor_roofs, tile_loads
from sovereign_lab.notebook.seed import TINYLLAMA

CHAPTERS = ("19_weights_in_tiles", "20_fewer_launches")


@pytest.fixture(scope="module")
def counted() -> dict[str, tile_loads.Counts]:
    return {name: tile_loads.counts(tile_loads.traced(name)) for name in tile_loads.KERNELS}


def test_requests_and_sectors_of_the_weights(counted: dict[str, tile_loads.Counts]) -> None:
    found = {name: (c.w_requests, c.w_sectors) for name, c in counted.items()}
    assert found["float4"] == (163_840, 475_136)
    assert found["wide"] == found["dp4a"] == (8_192, 73_728)
    assert found["wide"][1] == tile_loads.least_sectors() == 73_728
    assert found["columns"] == (8_192, 73_728 + 8_192)
    assert counted["float4"].requests_a_row == 80 and counted["wide"].requests_a_row == 4
    assert counted["float4"].bytes_a_request == pytest.approx(14.4)
    assert counted["wide"].bytes_a_request == 288
    assert counted["mma"].requests_a_row == 24
    assert f"{475_136 / 73_728:.1f}" == "6.4"
    assert Q4_0_PAIR * 4 == 144 == 8 * 18


def test_what_x_costs_and_what_columns_do_more(counted: dict[str, tile_loads.Counts]) -> None:
    wide, dp4a, columns = (counted[name] for name in ("wide", "dp4a", "columns"))
    assert (wide.x_requests, wide.x_sectors) == (32_768, 262_144)
    assert wide.x_requests == 4 * wide.w_requests
    assert (dp4a.x_requests, columns.x_requests) == (2_048, 4_096)
    assert dp4a.shuffles < columns.shuffles
    assert dp4a.shared_requests < columns.shared_requests
    gemv = op("gemv_tiles")
    args = {"rows": 2048}
    blocks = [gemv.grid(gemv.variant(name), args) for name in ("dp4a", "columns")]
    assert blocks == [64, 128]
    # one barrier a block, for each of its eight warps
    assert [dp4a.barriers, columns.barriers] == [8 * n for n in blocks]


def test_no_bank_conflict_in_dp4a() -> None:
    shared = [row for row in tile_loads.traced("dp4a").lines if row.space == "shared"]
    assert shared and sum(row.bank_conflicts for row in shared) == 0


PROBE = """
#include "tiles.cuh"
extern "C" __global__ void probe(const uint4* W, const uint4* x, int* out) {
  Q8Block activations;
  activations.load((const Q8Pair*)x + threadIdx.x, 0);
  out[threadIdx.x] = dot_q4_0(W[threadIdx.x], activations);
}
"""


def test_a_block_s_product_is_exact(any_device: Device) -> None:
    rng = np.random.default_rng()
    weights = rng.integers(-8, 8, (32, 32))
    values = rng.integers(-127, 128, (32, 32))
    weights[0], values[0] = -8, -127
    levels = (weights & 15).astype(np.uint8)
    x = np.zeros((32, 80), np.uint8)
    x[:, :32] = values.astype(np.int8).view(np.uint8)
    out = any_device.array(np.zeros(32, np.int32))
    nibbles = any_device.array((levels[:, :16] | levels[:, 16:] << 4).view(np.uint32))
    any_device.launch(
        any_device.compile(PROBE), 1, 32, [nibbles, any_device.array(x.view(np.uint32)), out]
    )
    got = any_device.to_host(out)
    assert got.tolist() == (16 * (weights * values).sum(axis=1)).tolist()
    assert got[0] == int8_products.LARGEST == 520_192 < 2**24


def test_a_nibble_under_the_mask_is_16_times_its_weight() -> None:
    rows = int8_products.nibble_table().rows
    assert [int(row[4]) for row in rows] == [16 * (n - 8) for n in range(16)]
    assert [row[2] for row in rows] == [f"{n - 8 & 15:04b}" for n in range(16)]


@pytest.mark.skipif(
    bool(nvrtc.why_no_nvrtc() or sass.why_no_sass()), reason="no compiler for a GPU here"
)
def test_instructions_of_a_block() -> None:
    floats, in_bytes = (
        int8_products.instructions(source) for source in (int8_products.FLOATS, int8_products.BYTES)
    )
    assert sum(int8_products.grouped(floats).values()) == 134
    assert sum(int8_products.grouped(in_bytes).values()) == 23
    assert (in_bytes["IDP"], in_bytes["LOP3"], in_bytes["SHF"]) == (8, 8, 4)
    assert (floats["I2FP"], in_bytes["I2FP"]) == (32, 1)
    # nothing arithmetic is left out of the groups
    counted = {o for members in int8_products.GROUPS.values() for o in members}
    beside = {"LDG", "LDC", "ULDC", "STG", "S2R", "EXIT", "BRA", "NOP"}
    assert (set(floats) | set(in_bytes)) <= counted | beside


def test_a_scale_for_32_keeps_an_outlier_to_its_block() -> None:
    x = np.random.default_rng().standard_normal(2048).astype(np.float32)
    spoiled = x.copy()
    spoiled[0] = 300
    assert np.array_equal(reference.int8(x)[32:], reference.int8(spoiled)[32:])
    assert not np.array_equal(reference.int8(x)[1:32], reference.int8(spoiled)[1:32])
    for row in int8_products.rounding_table().rows:
        own, one = (float(cell.rstrip("%")) for cell in row[1:])
        assert own < one


def test_bytes_of_the_head() -> None:
    heads = {name: token_bytes(TINYLLAMA, type) for name, type in tile_loads.HEADS.items()}
    before, after, _ = heads.values()
    saved = before.at(0) - after.at(0)
    assert f"{saved / 1e6:.1f}" == "192.5"
    assert f"{saved / before.at(0):.0%}" == "24%"
    assert f"{after.head / 1e6:.1f}" == "69.6"
    assert f"{before.at(0) / 1e6:.0f}" == "807"


def test_where_phase_9b_stood() -> None:
    run = tensor_roofs.recorded_tensor_run()
    assert f"{np.median(tensor_roofs.decode_of(run, '9b').change_ms):.2f}" == "1.59"
    gpu = find_gpu("NVIDIA H200")
    assert gpu is not None and f"{floor(token_bytes(TINYLLAMA).at(0), gpu).ms:.2f}" == "0.19"


def test_the_card() -> None:
    card = counts("19")
    assert card["load requests"] == (640, 160)
    assert card["load sectors"] == (5_248, 1_664)
    assert card["shared-memory wavefronts"] == (0, 4_224)
    assert card["bank conflicts"] == (0, 2_048)


def test_two_names_are_a_near_tie(repository: Path) -> None:
    said = _texts(repository, CHAPTERS[0])
    assert (
        "0.01 apart in FP32; 9 tokens are within 0.5 of the likeliest, the next is 6.7 below"
        in said
    )
    assert PHASES["10"].plan["gemv_tiles"] == "columns"


# ---- the recorded run, for chapters 19 and 20 ----


def _texts(repository: Path, chapter: str) -> str:
    """All outputs of a chapter that are text."""
    cells = nbformat.read(repository / f"notebooks/{chapter}.ipynb", as_version=4).cells
    outputs = [o for c in cells if c.cell_type == "code" for o in c.outputs]
    return "\n".join(str(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in outputs)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_shows_the_recorded_run_once_there_is_one(repository: Path, chapter: str) -> None:
    there = (repository / f"data/runs/{decode_times.RECORDED}.json").exists()
    assert (decode_times.NOT_YET in _texts(repository, chapter)) != there


def test_nothing_recorded_is_said() -> None:
    assert decode_times.said(None, "10", "9b").endswith(": not recorded yet")
    assert decode_times.verdict(None, "10", "9b") == decode_times.origin(None) == "not recorded yet"
    assert decode_times.gains(None, {"q": ("10", "9b")}) == {}
    assert decode_times.times_table(None, ["10"]).rows == [["not recorded yet"]]


@pytest.fixture
def made_up(tmp_path: Path) -> DecodeRun:
    """Figures that nobody measured, to hold the sentences to."""
    us = {"9b": 1000.0, "10": 500.0, "11": 400.0, "11 without a graph": 800.0}
    times = tuple(
        Times(name, context, tuple(base + context / 10 + i for i in range(9)))
        for name, base in us.items()
        for context in (16, 128)
    )
    run = DecodeRun(
        {"device": "NVIDIA H200", "date": "a day"}, "", "m", 32, 10**8, 10**3, dict.fromkeys(us, 1), times
    )  # fmt: skip
    run.write(tmp_path / "run.json")
    return DecodeRun.read(tmp_path / "run.json")


def test_sentences_of_a_run(made_up: DecodeRun) -> None:
    said = decode_times.said(made_up, "10", "9b")
    assert said.startswith(
        "phase 10 against phase 9b, context 128: 1,016.8 us -> 516.8 us a token, 1.967 times as fast (95 %: "
    )
    assert said.endswith("9 rounds): keep")
    assert decode_times.verdict(made_up, "9b", "10") == "revert"
    assert decode_times.verdict(made_up, "10", "10") == "no difference"
    assert decode_times.verdict(made_up, "12", "10") == "not recorded yet"
    assert decode_times.saved(made_up, "10", "9b") == (
        "phase 9b to phase 10 saves 500 us at 16, 500 us at 128"
    )
    table = decode_times.times_table(made_up, ("10", "12"))
    assert table.rows[0][:3] == ["phase 10", "505.6", "516.8"]
    assert table.rows[1][1:3] == ["no figure", "no figure"]
    figure: Any = decode_times.picture(made_up, ("9b", "10"), "t")
    assert [list(trace.y) for trace in figure.data] == [
        pytest.approx([1005.6, 1016.8]), pytest.approx([505.6, 516.8])
    ]  # fmt: skip


def test_what_is_saved_is_saved_at_every_context_alike(repository: Path) -> None:
    run = decode_times.recorded_decode_run()
    if run is None:
        pytest.skip("not recorded yet")
    saved = [run.us("9b", c) - run.us("10", c) for c in run.contexts]
    assert min(saved) > 0 and max(saved) < 1.1 * min(saved)
    assert decode_times.verdict(run, "10", "9b") == PHASES["10"].verdict
    assert decode_times.verdict(run, "11", "10") == PHASES["11"].verdict
    for t in run.texts:
        assert t.ok
