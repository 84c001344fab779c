"""What chapter 17 says in its prose, held to the recorded run, to the trace and to the committed card."""

import statistics

import pytest
from edited_cells import counts

from sovereign_lab.measure.tensor_cores import matrices
from sovereign_lab.notebook import swizzle, tensor_roofs
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.tensor_roofs import CUDA_CORES, MMA, ONE_TOKEN, WMMA

RUN = tensor_roofs.recorded_tensor_run()
H200, SEED = tensor_roofs.roofs("H200"), tensor_roofs.roofs("RTX 5060 Ti")
MATRICES = tuple(matrices(TINYLLAMA))


def test_ridges_in_operations_and_in_tokens() -> None:
    assert f"{tensor_roofs.operations_a_byte(1):.1f}" == "3.6"
    assert [f"{n:.1f}" for n in H200.ridge_tokens] == ["4.4", "65.1"]
    assert [f"{n:.0f}" for n in SEED.ridge_tokens] == ["15", "30"]
    assert f"{H200.cuda:.1f} {H200.tensor:.0f}" == "66.9 989"
    assert f"{SEED.tensor / SEED.cuda:.0f} {H200.tensor / H200.cuda:.0f}" == "2 15"


def test_many_tokens_pay_without_tensor_cores_too() -> None:
    def crossings(kernel: str) -> list[int | None]:
        return [RUN.crossing(matrix, ONE_TOKEN, kernel) for matrix in MATRICES]

    assert crossings(CUDA_CORES) == [12, 12, 8, 16]
    assert crossings(WMMA) == crossings(MMA) == [8, 8, 4, 12]


def test_the_curve_of_gate_and_up() -> None:
    float4, mma = RUN.us("gate, up", ONE_TOKEN), RUN.us("gate, up", MMA)
    wmma, plain = RUN.us("gate, up", WMMA), RUN.us("gate, up", CUDA_CORES)
    assert f"{mma[64] / mma[1]:.2f} {float4[1]:.1f} {mma[1]:.1f}" == "1.06 12.8 32.6"
    assert f"{wmma[1]:.1f} {wmma[16]:.1f}" == "35.1 42.7"
    wo = RUN.us("WO", MMA)
    assert max(wo.values()) / wo[1] < 1.16
    assert plain[8] / plain[1] < 1.05 < plain[12] / plain[8]
    for n in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert float4[2 * n if n < 256 else 512] / float4[n] == pytest.approx(2, abs=0.1)


def test_leads_over_the_plain_kernel() -> None:
    def leads(n: int) -> list[str]:
        pairs = ((RUN.us(m, CUDA_CORES), RUN.us(m, MMA)) for m in MATRICES)
        return [f"{a[n] / b[n]:.1f}" for a, b in pairs]

    assert leads(8) == ["1.2", "1.2", "2.3", "1.2"]
    assert sorted(map(float, leads(512))) == [22.3, 25.6, 31.6, 32.0]
    plain = [tensor_roofs.products_of(RUN, m, CUDA_CORES)[512].tflops for m in MATRICES]
    assert 3.5 < min(plain) < max(plain) < 8.5


def test_past_the_roof_of_the_cuda_cores() -> None:
    rows = tensor_roofs.tflops_table(RUN, H200).rows
    assert [row[-1] for row in rows] == ["from 256 on", "from 512 on", "from 64 on", "from 256 on"]
    assert [round(float(row[1][:-3])) for row in rows] == [49, 36, 132, 84]
    assert [round(float(row[4][:-3])) for row in rows] == [5, 4, 24, 12]


def test_a_step_takes_a_microsecond_while_every_block_has_an_sm() -> None:
    for matrix, (rows, cols) in matrices(TINYLLAMA).items():
        us, steps = RUN.us(matrix, MMA), tensor_roofs.steps(cols)
        assert steps == (88 if matrix == "down" else 32)
        for n in (1, 64, 128, 512):
            a_step = us[n] / steps
            assert (0.9 < a_step < 1.14) == (tensor_roofs.blocks(rows, n) <= 132), (matrix, n)
    assert (tensor_roofs.blocks(2560, 512), tensor_roofs.blocks(11264, 512)) == (160, 704)
    assert f"{RUN.us('WQ, WK, WV', MMA)[512] / 32:.2f}" == "1.54"
    assert f"{RUN.us('gate, up', MMA)[512] / 32:.2f}" == "4.12"


def test_counters_of_the_run() -> None:
    found = RUN.counters[MMA]
    busy = tensor_roofs.busy(RUN)
    assert f"{busy[MMA]:.1f} {busy['attention_tokens:mma']:.1f}" == "18.1 4.8"
    assert found["sm__maximum_warps_per_active_cycle_pct"] == 18.75
    assert found["launch__registers_per_thread"] == 132
    assert 65_536 // (132 * 128) * 4 / 64 == 0.1875  # three blocks of four warps, of 64
    assert found["memory_l1_wavefronts_shared"] == found["memory_l1_wavefronts_shared_ideal"]


def test_the_trace_counts_the_wavefronts_that_the_gpu_counted() -> None:
    traced = swizzle.block_trace(steps=1)
    assert sum(row.bank_conflicts for row in traced.lines) == 0
    assert (
        swizzle.wavefronts(traced) * 32 * tensor_roofs.blocks(2048, 512)
        == (RUN.counters[MMA]["memory_l1_wavefronts_shared"])
    )
    # a block of the storyteller's has 4 steps, and the card's launch two blocks
    x_store, w_store, x_load, w_load = (
        4 * row.wavefronts for row in traced.lines if row.space == "shared"
    )
    card = counts("17")
    assert card["shared-memory wavefronts"] == (4608, 29184)
    assert card["shared-memory wavefronts"][0] == 2 * (x_store + w_store + x_load + w_load)
    assert card["shared-memory wavefronts"][1] == 2 * (
        x_store + 4 * w_store + 8 * (x_load + w_load)
    )
    assert card["load sectors"][0] == card["load sectors"][1]
    assert f"{29184 / 4608:.1f}" == "6.3"


def test_prefill_and_its_parts() -> None:
    rates = {p.tokens: p.tokens_per_second for p in RUN.prefill}
    assert f"{rates[513][1] / rates[513][0]:.0f}" == "127"
    ms = {n: (n - 1) / rates[n][1] * 1e3 for n in (33, 129, 513)}
    assert {n: f"{v:.1f}" for n, v in ms.items()} == {33: "11.2", 129: "11.4", 513: "8.4"}
    assert abs(ms[129] / ms[33] - 1) < 0.03
    assert rates[2049][1] < rates[513][1]
    parts = tensor_roofs.block_parts(RUN)
    products = sum(us for name, us in parts.items() if name != "everything else")
    assert f"{products / 1e3:.1f} {products / sum(parts.values()):.0%}" == "6.6 79%"
    of_32 = TINYLLAMA.layers * sum(RUN.us(m, MMA)[32] for m in MATRICES)
    assert f"{of_32 / 1e3:.1f}" == "3.9"


def test_llama_cpp_reads_the_same_prompts_in_turn() -> None:
    peer = tensor_roofs.recorded_peer_run()
    found = {p.tokens: p.comparison for p in peer.points if p.what == "prefill"}
    assert {n: f"{c.speedup:.2f}" for n, c in found.items()} == {
        128: "1.00",
        512: "1.35",
        2048: "1.21",
    }
    assert found[128].verdict == "no difference"
    assert found[128].low < 1 < found[128].high
    assert found[512].high < 1.5
    ms = {n: 128 * statistics.median(c.change_ms) for n, c in found.items()}
    assert f"{ms[128]:.1f}" == "6.5"
    ours = next(
        p.tokens_per_second[1] for p in peer.points if (p.what, p.tokens) == ("prefill", 512)
    )
    assert 0.9 < ours / tensor_roofs.prefill_rate(RUN, 513) < 1
