"""What chapter 12 says in its prose, held to the trace, to the recorded runs and to the seed's figures."""

import pytest
from edited_cells import a_row

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.measure.roofline import find_gpu, token_bytes
from sovereign_lab.notebook import float4
from sovereign_lab.notebook.op_times import forward_ms, op_times
from sovereign_lab.notebook.runs import recorded_run, three_columns
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA

CONTEXTS = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts"
LADDER = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-ladder"

# requests, sectors of all requests, distinct sectors, shuffles of a row
COUNTS = {
    ("gemv_q4_0", "8b"): (192, 412, 292, 69),
    ("gemv_q4_0", "8c"): (96, 488, 292, 5),
    ("ffn_swiglu", "8b"): (320, 568, 328, 74),
    ("ffn_swiglu", "8c"): (176, 720, 328, 10),
    ("logits", "8b"): (128, 512, 512, 5),
    ("logits", "8c"): (32, 512, 512, 5),
}


@pytest.mark.parametrize(("op_name", "phase"), COUNTS)
def test_counts_of_a_row(op_name: str, phase: str) -> None:
    c = float4.row_counts(op_name, phase)
    assert (c.requests, c.sectors, c.distinct, c.shuffles) == COUNTS[op_name, phase]


def test_shuffles_are_one_a_block_and_those_of_the_sums() -> None:
    blocks = float4.COLS // 32
    assert COUNTS["gemv_q4_0", "8b"][3] == blocks + 5
    assert COUNTS["ffn_swiglu", "8b"][3] == blocks + 10


def test_sectors_rose_by_18_and_27_percent() -> None:
    rise = {name: COUNTS[name, "8c"][1] / COUNTS[name, "8b"][1] for name in float4.OPS}
    assert {name: f"{r:.2f}" for name, r in rise.items()} == {
        "gemv_q4_0": "1.18",
        "ffn_swiglu": "1.27",
        "logits": "1.00",
    }


def test_gains_and_shares_of_the_bandwidth_on_the_h200() -> None:
    run = recorded_run(CONTEXTS)
    rows = {row[0].split(" x ")[0]: row[1:] for row in float4.times_table(run).rows}
    assert run.device == "NVIDIA H200"
    assert rows["gemv_q4_0"] == [
        "259.5 MB", "1229.3 us", "791.0 us", "1.55 times as fast", "211 GB/s, 5%", "328 GB/s, 8%"
    ]  # fmt: skip
    assert rows["ffn_swiglu"] == [
        "285.5 MB", "419.3 us", "334.5 us", "1.25 times as fast", "681 GB/s, 16%", "853 GB/s, 20%"
    ]  # fmt: skip
    assert rows["logits"] == [
        "262.1 MB", "63.1 us", "65.4 us", "0.97 times as fast", "4,156 GB/s, 97%", "4,011 GB/s, 94%"
    ]  # fmt: skip


def test_logits_got_slower_beyond_the_spread() -> None:
    figures = recorded_run(CONTEXTS).figures
    before, after = (figures[f"  phase {p}, logits x 1, at position 16"] for p in ("8b", "8c"))
    assert after.low > before.high
    assert after.value / before.value == pytest.approx(1.04, abs=0.005)


def test_ops_alone_explain_what_a_forward_pass_saves() -> None:
    run = recorded_run(CONTEXTS)
    before, after = (op_times(run, phase) for phase in ("8b", "8c"))
    saved = sum(before[name].us - after[name].us for name in float4.OPS)
    model = 1e3 * (forward_ms(run, "8b") - forward_ms(run, "8c"))
    assert saved == pytest.approx(model, rel=0.02)
    for name in set(before) - set(float4.OPS):
        assert abs(before[name].us - after[name].us) < 0.2, name


def test_the_same_is_saved_at_every_position() -> None:
    run = recorded_run(CONTEXTS)
    rows = float4.context_table(run).rows
    assert {row[3] for row in rows} == {"0.51 ms", "0.52 ms"}
    assert [row[4][:4] for row in rows] == ["1.31", "1.23", "1.18", "1.13", "1.08", "1.05"]


def test_weights_of_the_ops_are_those_of_a_token() -> None:
    assert sum(float4.weight_bytes(name) for name in float4.OPS) == token_bytes(TINYLLAMA).at(0)


def test_shuffle_alone_is_worth_little() -> None:
    alone = recorded_run("2026-11-30-sm_90-gemv_q4_0")
    for shape in ("5,632 x 2,048", "2,048 x 5,632", "2,048 x 2,048", "256 x 2,048"):
        old, new = (
            alone.value(f"gemv_q4_0 {v}, {shape}, stream") for v in ("coalesced", "broadcast")
        )
        assert 0 <= 1 - new / old < 0.025


def test_seed_and_h200_ladder() -> None:
    rates = recorded_run(LADDER).ladder()
    assert (round(rates["8b"], 1), round(rates["8c"], 1)) == (443.1, 573.7)
    assert f"{rates['8c'] / rates['8b']:.2f}" == "1.29"
    assert PHASES["8b"].seed_tokens_per_second == 151.48
    assert PHASES["8c"].seed_tokens_per_second is None
    seed_rate = token_bytes(TINYLLAMA).at(0) / 6.49e-3 / 1e9  # GB/s
    gpu = find_gpu(GPU_NAME)
    assert gpu is not None
    assert f"{seed_rate:.0f} {gpu.bandwidth:.0f} {seed_rate / gpu.bandwidth:.0%}" == "124 448 28%"


def test_three_columns_give_the_seed_no_figure(simt: Device) -> None:
    run = recorded_run(LADDER)
    table = three_columns(("8b", "8c"), run, {"8b": 2.0, "8c": 1.0}, "a model", simt.properties)
    assert table.head[3] == "this machine: a CPU imitating a GPU"
    assert [row[1] for row in table.rows[1:]] == [
        "151.48 tok/s",
        "6.60 ms",
        "no figure",
        "",
        "no figure",
    ]
    assert table.rows[-1][2:] == ["1.29 times as fast", "0.50 times as fast"]


def test_other_ops_are_refused() -> None:
    with pytest.raises(LabError, match="gemv_q4_0, ffn_swiglu, logits; got 'add'"):
        float4.arguments("add")


def test_narrow_loads_of_x_touch_every_sector_four_times() -> None:
    row = a_row("12", 256)
    assert row["load requests"] == (12, 18)
    assert row["load sectors"] == (61, 157)
    trips, sectors = 2, 16  # of a row of 8 blocks; of the 512 bytes of x in a trip
    more_requests, more_sectors = (
        mine - parent for parent, mine in (row["load requests"], row["load sectors"])
    )
    assert more_requests == trips * (4 - 1)
    assert more_sectors == trips * (4 - 1) * sectors
    assert row["shuffles"] == (5, 5)
