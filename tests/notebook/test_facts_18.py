"""What chapter 18 says in its prose, held to the recorded run, to data sheets and to the seed's figures."""

import json
import statistics

from sovereign_lab.engine import PHASES
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.notebook import tensor_roofs
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.seed import TINYLLAMA

RUN = tensor_roofs.recorded_tensor_run()
H200, SEED = tensor_roofs.roofs("H200"), tensor_roofs.roofs("RTX 5060 Ti")
SEED_MS = 6.49  # a forward pass at phase 8b, in its log


def test_floors_of_one_token() -> None:
    h200, seed = tensor_roofs.layer_floors(H200, 1), tensor_roofs.layer_floors(SEED, 1)
    assert [round(us) for us in (h200.bytes, h200.cuda, h200.tensor)] == [128, 29, 2]
    assert [round(us) for us in (seed.bytes, seed.cuda, seed.tensor)] == [1217, 82, 41]
    assert f"{h200.cuda / 1639:.1%} {seed.cuda / 1e3 / SEED_MS:.1%}" == "1.8% 1.3%"
    assert f"{H200.ridge_tokens[0]:.1f} {SEED.ridge_tokens[0]:.1f}" == "4.4 14.9"


def test_decode_against_8c() -> None:
    a, b = (tensor_roofs.decode_of(RUN, phase) for phase in ("9a", "9b"))
    assert f"{a.speedup:.3f} {b.speedup:.3f}" == "0.725 1.033"
    assert b.low > 1
    before, after = (1e3 * statistics.median(ms) for ms in (b.base_ms, b.change_ms))
    assert f"{before:.0f} {after:.0f} {before - after:.0f}" == "1639 1587 52"
    assert [round(1e6 / us) for us in (before, after)] == [610, 630]
    assert round(1e3 / statistics.median(a.change_ms)) == 443
    assert (PHASES["9a"].verdict, PHASES["9b"].verdict) == (a.verdict, b.verdict)


def test_what_the_seed_aimed_at() -> None:
    assert PHASES["8b"].seed_tokens_per_second == 151.48
    assert f"{250 / 151.48:.2f} {305 / 151.48:.1f}" == "1.65 2.0"


def test_tensor_cores_are_idle_at_one_token() -> None:
    busy = tensor_roofs.busy(RUN)
    of_one = [busy[k] for k in ("gemv_q4_0:wmma", "gemv_q4_0:mma", "ffn_swiglu:mma")]
    assert 1 < min(of_one) < max(of_one) < 4
    assert max(busy, key=lambda k: busy[k]) == "gemm_q4_0:mma"


def test_no_product_alone_is_faster_with_mma() -> None:
    ratios = [float(row[3].split(", ")[1][:4]) for row in tensor_roofs.one_token_table(RUN).rows]
    assert (min(ratios), max(ratios)) == (0.66, 1.0)


def test_a_token_is_far_above_its_bytes() -> None:
    gpu = find_gpu("H200")
    assert gpu is not None
    assert round(1e3 * floor(token_bytes(TINYLLAMA).at(16), gpu).ms) == 189


def test_trips_of_a_row_of_2048() -> None:
    blocks = 2048 // 32
    assert (blocks // 4, blocks // 8) == (16, 8)  # float4: four blocks a trip; mma: eight warps


def test_the_gap_with_tensor_cores_in_the_products() -> None:
    peer = tensor_roofs.recorded_peer_run()
    found = {p.tokens: p.comparison.speedup for p in peer.points if p.what == "decode"}
    assert f"{found[16]:.3f} {found[3900]:.3f} {1 / found[16]:.2f}" == "0.644 0.109 1.55"
    assert {p.phase for p in peer.points} == {"9c"}
    assert PHASES["9c"].plan["gemv_q4_0"] == PHASES["9b"].plan["gemv_q4_0"] == "mma"


def test_the_control_in_9b() -> None:
    record = json.loads(in_checkout("data/runs/2026-12-01-sm_90-control.json").read_text())
    assert (record["baseline"], record["rounds"]) == ("9b", 11)
    assert (record["speedup"], record["low"], record["high"]) == (0.985, 0.984, 0.985)
    before, after = record["tokens_per_second"]
    assert abs(after / before - record["speedup"]) < 1e-3
