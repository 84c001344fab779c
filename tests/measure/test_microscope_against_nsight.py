"""The committed comparison with Nsight Compute on an H200: what it shows, and that the microscope still counts so."""

from pathlib import Path

import pytest

from sovereign_lab.kernels.registry import find_kernel
from sovereign_lab.measure import nsight
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.nsight.compare import Report
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.models.model import Config

GLOBAL = (
    nsight.LOAD_REQUESTS, nsight.LOAD_SECTORS, nsight.STORE_REQUESTS, nsight.STORE_SECTORS,
)  # fmt: skip
# One kernel of each way to touch memory: strided, coalesced, vectors, shared memory, one thread.
COUNTED_AGAIN = (
    "gemv_q4_0:block_per_row", "gemv_q4_0:coalesced", "ffn_swiglu:float4", "attention:three_pass",
    "argmax:block", "advance:single_thread",
)  # fmt: skip


@pytest.fixture(scope="module")
def report(repository: Path) -> Report:
    return Report.load(repository / "data/runs/2026-11-30-sm_90-storyteller-microscope.json")


def test_every_global_request_and_sector_is_the_same(report: Report) -> None:
    rows = [row for row in report.rows if row.metric in GLOBAL]
    assert len(rows) >= 4 * 22 and all(row.equal for row in rows)


def test_wavefronts_are_the_same_where_nvcc_reads_as_the_source_does(report: Report) -> None:
    differing = {
        row.kernel for row in report.rows if row.metric == nsight.WAVEFRONTS and not row.equal
    }
    assert differing == {"attention:online_softmax", "sample:bisect", "sample:gather"}


def test_every_difference_has_its_cause(report: Report) -> None:
    assert all(row.cause for row in report.differences())


@pytest.mark.parametrize("kernel", COUNTED_AGAIN)
def test_the_microscope_counts_today_what_was_compared(report: Report, kernel: str) -> None:
    op, variant = find_kernel(kernel)
    args = workload(op, Config(**report.config), report.position, report.seed)
    counted = trace(
        variant.path, op.grid(variant, args), variant.threads, args, DEFINES,
        shared_bytes=variant.shared_bytes(args),
    )  # fmt: skip
    known = {row.metric: row.ours for row in report.rows if row.kernel == kernel}
    for kind, requests, sectors in (
        ("load", nsight.LOAD_REQUESTS, nsight.LOAD_SECTORS),
        ("store", nsight.STORE_REQUESTS, nsight.STORE_SECTORS),
    ):
        assert (counted.requests(kind), counted.sectors(kind)) == (known[requests], known[sectors])
    wavefronts = sum(row.wavefronts for row in counted.lines if row.space == "shared")
    assert wavefronts == known[nsight.WAVEFRONTS]
