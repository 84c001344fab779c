"""Access widths in machine code against those that the traced build sees, for every kernel of the registry."""

from itertools import islice

import numpy as np
import pytest

from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import OPS, find_kernel
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.static import nvrtc
from sovereign_lab.measure.static.analysis import static_analysis, variant_source, width_mismatches
from sovereign_lab.measure.static.nvrtc import why_no_nvrtc
from sovereign_lab.measure.static.sass import why_no_sass

WHY_NOT = why_no_nvrtc() or why_no_sass()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

KERNELS = [f"{op.name}:{variant}" for op in OPS.values() for variant in op.variants]

Mismatches = dict[tuple[str, str, str, tuple[int, ...], tuple[int, ...]], str]

# How many of its test cases run, where it takes more than three to reach every line.
CASES = {"sample:gather": 7} | {f"persistent:{v}": 4 for v in OPS["persistent"].variants}

# Ops of which only accesses to global memory are compared: what persistent has worked out once lies in shared memory,
# pointers too, so that nvcc reads neighbours of it together, and what these point to in instructions without a space.
# Functions that it calls lie in headers, and have no line here.
GLOBAL_ONLY = {"persistent"}

WIDER = "nvcc unrolls the loop and reads neighbours in one instruction"
NOT_RUN = "no case has logits of which none is a number"

LINE_BEFORE = "the line table puts this store on the line before, whose width is the same"
LINE_OF_BOTH = "two neighbours are read in one instruction, on the line of the first"
ASYNCHRONOUS = "LDGSTS reads global and writes shared memory in one instruction, listed as a load"
WARP_MATRIX = "wmma deals a matrix out in accesses of its own; the SIMT device, element by element"
PAIR_OF_X: tuple[str, str, str, tuple[int, ...], tuple[int, ...]] = (
    "for (int i = 0; i < 4; i++) b[i / 2][i % 2] = pack_halves(pairs[t + 4 * i].x, pairs[t + 4 * i].y);",
    *("load", "global", (8,), (4,)),
)


def warp_matrices(*loads: str, store: str) -> Mismatches:
    """The mismatches of a kernel that loads fragments, and stores one, by these lines."""
    accesses = [(line, "load", 4, 2) for line in loads] + [(store, "store", 8, 4)]
    found: Mismatches = {}
    for line, kind, sass, traced in accesses:
        found[line, kind, "generic", (sass,), ()] = WARP_MATRIX
        found[line, kind, "shared", (), (traced,)] = WARP_MATRIX
    return found


# The warps' results meet in online softmax.
MEETING: Mismatches = {
    (
        "for (int w = 0; w < warps; w++) most = fmaxf(most, warp_largest[w]);",
        *("load", "shared", (16,), (4,)),
    ): WIDER,
    (
        "float correction = expf(warp_largest[w] - most);  // 0 for a warp that had no position",
        *("load", "shared", (16,), (4,)),
    ): WIDER,
    ("whole += warp_sums[w] * correction;", "load", "shared", (16,), (4,)): WIDER,
}

# (line of the source, kind, space, widths in machine code, widths traced): cause. By NVRTC 13.5 for sm_90.
MISMATCHES: dict[str, Mismatches] = {
    "rope_kv:fixed": {
        ("store(keys + to + 1, a * sine + b * cosine);", "store", "global", (), (2,)): LINE_BEFORE,
    },
    "rope_kv_tokens:pair_per_thread": {
        ("store(to + 1, b);", "store", "global", (), (2,)): LINE_BEFORE,
        ("store(keys + to + 1, b);", "store", "global", (), (2,)): LINE_BEFORE,
    },
    "rope_kv_batch:pair_per_thread": {
        ("store(keys + to + 1, b);", "store", "global", (), (2,)): LINE_BEFORE,
    },
    **{
        f"persistent:{variant}": {
            ("store(cache + 1, y.y);", "store", "global", (), (2,)): LINE_BEFORE
        }
        for variant in ("grid_barriers", "messages", "bulk")
    },
    "norm_qkv:fused": {("store(to + 1, y.y);", "store", "global", (), (2,)): LINE_BEFORE},
    "gemv_q4_0:wmma": warp_matrices(
        "wmma::load_matrix_sync(a, w_tile + part, STEP);",
        "wmma::load_matrix_sync(b, x_tile + part, STEP);",
        store="wmma::store_matrix_sync(y_tiles[warp], sums, TILE, wmma::mem_row_major);",
    ),
    "gemv_q4_0:mma": {PAIR_OF_X: LINE_OF_BOTH},
    "ffn_swiglu:mma": {PAIR_OF_X: LINE_OF_BOTH},
    "gemm_q4_0:cuda_cores": {
        (
            "v[t][1] = there ? __half22float2(pairs[1]) : make_float2(0, 0);",
            *("load", "global", (), (4,)),
        ): LINE_OF_BOTH,
    },
    "gemm_q4_0:wmma": warp_matrices(
        "wmma::load_matrix_sync(a, x_tile + part, STEP);",
        "wmma::load_matrix_sync(b, w_tile + part, STEP);",
        store="wmma::store_matrix_sync(y_tile, sums, TILE, wmma::mem_row_major);",
    ),
    "gemm_q4_0:mma": {
        (
            "copy_16(chunk(x_tiles[step % 2], row, c), "
            "there ? x + (size_t)(first_token + row) * depth + k : x, there);",
            *("store", "shared", (), (16,)),
        ): ASYNCHRONOUS,
    },
    "attention:online_softmax": MEETING,
    "attention_batch:online_softmax": MEETING,
    "sample:bisect": {
        (
            "draw_kept(logits, vocab, highest, kept, temperature, random_bits(*seed, *position), *best, drawn, "
            "partial);",
            *("load", "shared", (8, 16), (8,)),
        ): WIDER,
        ("if (threadIdx.x == 0) *drawn = *best;", "store", "global", (4,), ()): NOT_RUN,
    },
    "sample:gather": {
        (
            "if (values[j] > values[me] || (values[j] == values[me] && ids[j] < ids[me])) before += masses[j];",
            *("load", "shared", (4, 8, 16), (4, 8)),
        ): WIDER,
        (
            "draw_kept(logits, vocab, highest, kept, temperature, bits, *best, drawn, partial);",
            *("load", "shared", (8, 16), (8,)),
        ): WIDER,
        ("all += masses[j];", "load", "shared", (8, 16), (8,)): WIDER,
        ("if (ids[j] < ids[me]) lower += masses[j];", "load", "shared", (4, 16), (4,)): WIDER,
        ("if (threadIdx.x == 0) *drawn = *best;", "store", "global", (4,), ()): NOT_RUN,
    },
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_traced_widths_are_those_of_the_machine_code(kernel: str) -> None:
    if nvrtc.version() != (13, 5):
        pytest.skip(
            "the list of mismatches was made with NVRTC 13.5; this is {}.{}".format(
                *nvrtc.version()
            )
        )
    op, variant = find_kernel(kernel)
    sass = static_analysis(kernel, archs=[90]).sass(90)
    traces = [
        trace(
            variant_source(op, variant),
            op.grid(variant, args),
            variant.threads,
            args,
            shared_bytes=variant.shared_bytes(args),
            cooperative=variant.cooperative,
        )
        for args in islice(cases(op, np.random.default_rng(0)), CASES.get(kernel, 3))
    ]
    text = variant.source.splitlines()
    found = {
        (text[m.line - 1].strip(), m.kind, m.space, m.sass, m.traced)
        for m in width_mismatches(sass, traces)
        if op.name not in GLOBAL_ONLY or (m.space == "global" and m.line > 0)
    }
    assert found == set(MISMATCHES.get(kernel, {}))


def test_every_listed_mismatch_is_of_a_kernel_and_has_a_cause() -> None:
    assert set(MISMATCHES) <= set(KERNELS)
    assert all(cause for listed in MISMATCHES.values() for cause in listed.values())
