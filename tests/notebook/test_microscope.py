"""The microscope's forms: objects, text, HTML, terminal, JSON, the picture of a warp. Counts by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sovereign_lab as sl
from sovereign_lab.cli.app import app
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS
from sovereign_lab.notebook.microscope import Inspection, inspect_kernel

ADD = """// adds with a stride
extern "C" __global__ void add(float* x, const float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[(8 * i) % n];  // a < b & c
}
"""


@pytest.fixture(scope="module")
def coalesced() -> Inspection:
    """The storyteller's WQ: 256 rows of 8 blocks, 64 blocks of 4 warps."""
    return sl.inspect_kernel("gemv_q4_0:coalesced")


def test_products_of_tensor_cores_stand_beside_their_lines() -> None:
    inspection = sl.inspect_kernel("gemv_q4_0:mma")
    # 16 rows a block, 8 blocks of weights a row, two products each
    assert inspection.totals["products"] == 256 // 16 * 8 * 2
    assert inspection.totals["votes"] == 0
    found = [(r.code.strip(), r.count) for r in inspection.rows if r.what == "product"]
    assert found == [
        ("mma_16x8x16(sums, a[0], b[0]);", 128),
        ("mma_16x8x16(sums, a[1], b[1]);", 128),
    ]
    assert "Tensor Cores: 256 products of 16 x 16 by 16 x 8" in repr(inspection)


def test_totals_are_exact(coalesced: Inspection) -> None:
    # A warp a row and 8 iterations, each with a load of the scale, of the nibbles (16 bytes) and of x.
    totals = coalesced.totals
    assert totals["load_requests"] == 256 * 8 * 3
    assert totals["load_bytes_wanted"] == 256 * 8 * (2 + 32 + 128)
    assert (totals["store_requests"], totals["store_sectors"]) == (256, 256)
    assert totals["shuffles"] == 256 * (8 + 5) and totals["barriers"] == 0
    # The branches for lane 0 alone part every warp.
    assert totals["divergent_branches"] == 256 * (8 + 1)
    assert totals["distinct_bytes"] == 256 * 8 * 18 + 256 * 4 + 256 * 4
    scale, nibbles, x = (r for r in coalesced.trace.lines if r.kind == "load")
    assert (scale.sectors, x.sectors) == (256 * 8, 256 * 8 * 4)
    starts = np.arange(256 * 8) * 18 + 2
    assert nibbles.sectors == (starts // 32 != (starts + 15) // 32).sum() + 256 * 8


def test_every_form_has_the_same_figures(coalesced: Inspection) -> None:
    console = Console(width=170, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(coalesced)
    forms = (repr(coalesced), coalesced._repr_html_(), console.export_text())
    for form in forms:
        assert "all 64 blocks, exact by address" in form
        assert re.search(r"2,048\s+4 of 4", re.sub(r"<[^>]*>", " ", form))
        assert "6,144 requests" in form and "2,304 of 5,632 branches diverge" in form
        # Leading comments are left out; every line of code is there.
        assert "one warp a row" not in form and "nibbles[byte_index]" in form
    record = json.loads(json.dumps(coalesced.record()))
    assert record["totals"]["load_requests"] == 6144 and record["sampled"] is False
    assert {line["kind"] for line in record["lines"]} == {"load", "store"}


def test_a_large_launch_is_sampled_and_says_so() -> None:
    small = inspect_kernel("gemv_q4_0:coalesced", blocks=4)
    assert small.totals["load_requests"] == 4 * 4 * 8 * 3
    for form in (repr(small), small._repr_html_()):
        assert "a sample: 4 of 64 blocks were run and counted" in form
    assert small.record()["blocks_counted"] == 4 and small.record()["sampled"] is True


def test_a_kernel_of_one_s_own(tmp_path: Path) -> None:
    mine = inspect_kernel(source=ADD, like="add:elementwise")
    assert mine.kernel == "yours.cu, like add:elementwise"
    load = next(r for r in mine.trace.lines if r.kind == "load")
    # 256 elements, 8 warps: x in 4 sectors, and y 32 bytes apart, in 32.
    assert (load.requests, load.sectors) == (16, 8 * (4 + 32))
    assert "// a &lt; b &amp; c" in mine._repr_html_()
    (tmp_path / "mine.cu").write_text(ADD)
    path = inspect_kernel(source=tmp_path / "mine.cu", like="add:elementwise")
    assert path.kernel.startswith("mine.cu") and path.totals == mine.totals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (dict(kernel="dance:tango"), "no op 'dance'"),
        (dict(kernel="add"), "add:elementwise"),
        (dict(kernel="add:tango"), "no variant 'tango'"),
        (dict(), "inspect_kernel takes"),
        (dict(source=ADD), "inspect_kernel takes"),
        (dict(kernel="add:elementwise", like="add:elementwise"), "inspect_kernel takes"),
        (dict(source="extern \"C\" __global__ void f(int n) {}", like="add:elementwise"), "must take"),
        (dict(kernel="add:elementwise", position=10**6), "has positions 0 to"),
    ],
)  # fmt: skip
def test_what_cannot_be_inspected_is_refused(call: dict, message: str) -> None:
    with pytest.raises(LabError, match=message):
        inspect_kernel(**call)


def test_the_picture_of_a_warp(coalesced: Inspection) -> None:
    line = next(r.line for r in coalesced.trace.lines if "x[b * 32" in r.text)
    picture = coalesced.warp(line, array="x")
    idle, moved, lanes = picture.figure.data
    # Lane i reads bytes 4 i to 4 i + 3: one line, its four sectors, 32 marks.
    assert len(idle.y) == 0 and list(moved.base) == [0, 32, 64, 96]
    assert list(lanes.base) == [4 * i for i in range(32)] and set(lanes.x) == {4}
    assert lanes.hovertext[5] == "lane 5: 4 bytes at +20"
    # The slider goes through the warp's iterations, a line further each.
    steps = picture.figure.layout.sliders[0].steps
    assert len(steps) == len(picture.figure.frames) == 24
    assert [f.layout.yaxis.ticktext[0] for f in picture.figure.frames[:3]] == ["0", "128", "256"]
    bundle = picture._repr_mimebundle_()
    assert bundle["image/svg+xml"].count("<rect") == 4 + 32
    assert "4 sectors in 1 line: 128 bytes moved for 128 wanted" in bundle["image/svg+xml"]
    json.dumps(bundle["application/vnd.plotly.v1+json"], default=list)


def test_the_picture_starts_where_it_is_told_to(coalesced: Inspection) -> None:
    line = next(r.line for r in coalesced.trace.lines if r.kind == "store")
    picture = coalesced.warp(line, request=250)
    assert "store 250 of 256: block 62, warp 2" in picture.svg
    assert [s.label for s in picture.figure.layout.sliders[0].steps] == [
        str(i) for i in range(250, 256)
    ]
    with pytest.raises(LabError, match="makes 256 global requests; number 256"):
        coalesced.warp(line, request=256)
    with pytest.raises(LabError, match="makes 0 global requests of `W`"):
        coalesced.warp(line, array="W")


def test_trace_command() -> None:
    runner = CliRunner()
    first, second = (runner.invoke(app, ["trace", "add:elementwise", "--json"]) for _ in range(2))
    assert first.exit_code == 0 and first.stdout == second.stdout
    assert json.loads(first.stdout)["totals"]["load_requests"] == 16
    text = runner.invoke(app, ["trace", "add:elementwise", "--blocks", "1"])
    assert text.exit_code == 0 and "4 of 4" in text.stdout and "x[i] += y[i]" in text.stdout


def test_every_variant_can_be_inspected() -> None:
    # Those with state that a first run changes, and those of one block.
    for name in ("advance", "rope_kv", "argmax", "embedding"):
        for variant in OPS[name].variants:
            inspection = inspect_kernel(f"{name}:{variant}")
            assert inspection.totals["store_requests"] > 0
