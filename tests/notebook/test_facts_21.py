"""What chapter 21 says in its prose, held to recorded runs, to exact counts and to the committed card."""

from pathlib import Path

import nbformat
import pytest
from edited_cells import counts

from sovereign_lab.kernels import INCLUDE
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.roofline import find_gpu
from sovereign_lab.notebook import decode_times, split_parts
from sovereign_lab.notebook.context_times import by_position
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA

NAME = "notebooks/21_split_attention.ipynb"
ALONE = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-attention")
RUN = decode_times.recorded_decode_run()
recorded = pytest.mark.skipif(RUN is None, reason="the run of decoding is not recorded yet")


def test_the_token_that_grows() -> None:
    ms = by_position(recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts"), "8c")
    assert f"{ms[16]:.2f} {ms[2048]:.2f}" == "1.65 6.32"
    assert f"{split_parts.attention_us(ALONE, 2048):,.0f}" == "4,416"
    gpu = find_gpu("H200")
    assert gpu is not None
    assert gpu.bandwidth == 4270
    assert f"{split_parts.kv_bytes(2048) / gpu.bandwidth / 1e3:.1f}" == "10.8"
    assert f"{split_parts.kv_bytes(1) / 1e3:.1f}" == "22.5"
    for positions, least in ((2048, 10), (4000, 21)):
        assert int(split_parts.kv_bytes(positions) / gpu.bandwidth / 1e3) == least


def test_a_position_takes_half_a_microsecond_and_more() -> None:
    rows = split_parts.chain_table(ALONE, (256, 512, 1024, 2048, 4000)).rows
    a_position = [float(row[-1].split()[0]) for row in rows]
    assert (min(a_position), max(a_position)) == (0.49, 0.83)
    assert rows[3][3:] == ["256", "0.78 us"]
    assert TINYLLAMA.heads == 32
    assert 132 - TINYLLAMA.heads == 100


def test_blocks_of_both_kernels() -> None:
    rows = split_parts.units_table((256, 2048, 4000), 132).rows
    assert [row[3].split(" = ")[1].split()[0] for row in rows] == ["4", "32", "64"]


def test_counts_of_one_kv_head() -> None:
    before, after = split_parts.count(2048)
    assert (before.blocks, after.blocks) == (8, 8)
    assert (before.steps, after.steps) == (256, 1)
    assert before.bytes_of_values == 8 * after.bytes_of_values
    assert before.bytes_of_keys == 4 * after.bytes_of_keys
    assert after.bytes_of_values == 2048 * 64 * 2
    assert after.bytes_of_keys == 2 * after.bytes_of_values
    assert after.products * split_parts.PRODUCT == 2 * (2 * 8 * 2048 * 64)


def test_the_edit_asks_for_every_key_once() -> None:
    card = counts("21")
    assert card["load requests"][0] == card["load requests"][1]
    assert card["load sectors"] == (1808, 1296)
    assert card["divergent branches"] == (25, 53)
    assert 1808 - 1296 == 64 * 128 * 2 // 32, (
        "64 positions of two KV heads of 64 halves: every key once"
    )


def test_the_constants_are_the_header_s() -> None:
    header = (INCLUDE / "split_attention.cuh").read_text()
    assert f"#define BUNDLE {split_parts.BUNDLE} " in header
    assert f"#define PER_WARP {split_parts.PER_WARP} " in header
    assert f"#define SPLIT_WARPS {split_parts.WARPS}\n" in header
    assert split_parts.WARPS * split_parts.PER_WARP == split_parts.SPLIT


def test_nothing_recorded_is_told_as_missing(repository: Path) -> None:
    text = (repository / NAME).read_text()
    if RUN is not None:
        assert decode_times.NOT_YET not in text, f"execute {NAME} again: the run is recorded"


@recorded
def test_the_context_adds_little() -> None:
    assert RUN is not None
    added = {name: [RUN.added(name, c) for c in (2048, 4000)] for name in ("8c", "11", "12")}
    assert added["12"] == pytest.approx([45, 73], abs=2.5)
    assert added["11"] == pytest.approx([4400, 8900], rel=0.01)
    for old, same in zip(added["11"], added["8c"], strict=True):
        assert abs(same / old - 1) < 0.01, "they share their attention"  # type: ignore[operator]
    gains = {c: RUN.gain("12", "11", c) for c in (16, 128, 2048)}
    assert 0.01 < 1 / gains[16] - 1 < 0.02
    assert f"{gains[128]:.2f} {gains[2048]:.1f}" == "1.41 8.4"


def test_the_exercise_is_the_registry_s_kernel(repository: Path) -> None:
    cells = nbformat.read(repository / NAME, as_version=4).cells
    cell = next(c for c in cells if "exercise-21.1" in c.metadata.get("tags", []))
    assert op("attention_merge").variant("block_per_head").source in cell.source
