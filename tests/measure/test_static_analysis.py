"""The static lane: every kernel compiles for every generation; what the report says, and where there is none."""

import json
import platform
import sys
from pathlib import Path

import pytest

from sovereign_lab import cli
from sovereign_lab.devices.device import Source
from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS, find_kernel
from sovereign_lab.measure.static import nvrtc
from sovereign_lab.measure.static.analysis import ARCHS, static_analysis
from sovereign_lab.measure.static.nvrtc import CompileError, compile_cubin, why_no_nvrtc
from sovereign_lab.measure.static.occupancy import more_blocks_with
from sovereign_lab.measure.static.sass import why_no_sass
from sovereign_lab.measure.workload import DEFINES

needs_nvrtc = pytest.mark.skipif(why_no_nvrtc() is not None, reason=str(why_no_nvrtc()))
# A kernel of the whole model takes NVRTC seconds for each: the oldest that it is for, the newest, and the H200's.
FEWER_ARCHS = {"persistent": (75, 90, 120)}
# Nine warps on an SM's four partitions leave 168 registers a thread, which on sm_90 are enough.
SPILLED_BYTES = {("persistent:bulk", 120): 24}
KERNELS = [f"{op.name}:{variant}" for op in OPS.values() for variant in op.variants]


@needs_nvrtc
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_for_every_generation_without_spilling(kernel: str) -> None:
    op, variant = find_kernel(kernel)
    archs = [a for a in FEWER_ARCHS.get(op.name, ARCHS) if a >= variant.arch]
    report = static_analysis(kernel, archs=archs if op.name in FEWER_ARCHS else None)
    assert [row.cubin.arch for row in report.rows] == archs
    for row in report.rows:
        assert row.cubin.kernel == parse_signature(variant.source, DEFINES).name
        spilled = SPILLED_BYTES.get((kernel, row.cubin.arch), 0)
        assert row.cubin.spill_stores == row.cubin.spill_loads == spilled
        assert row.occupancy.blocks >= 1 and row.cards


def own(body: str, head: str = "") -> Source:
    text = f'{head}extern "C" __global__ void f(const float* x, float* y) {{\n{body}\n}}\n'
    return Source(text, "mine.cu", {})


# 128 values that are all needed at once, where a block of 1,024 threads leaves 64 registers a thread.
GREEDY = Source(
    """extern "C" __global__ void __launch_bounds__(1024) f(const float* x, float* y) {
  float kept[128], sum = 0;
  #pragma unroll
  for (int i = 0; i < 128; i++) kept[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 128; i++) sum = sum * kept[i] + kept[127 - i];
  y[threadIdx.x] = sum;
}""",
    "greedy.cu",
    {},
)


@needs_nvrtc
def test_spills_are_counted_and_said() -> None:
    report = static_analysis(GREEDY, threads=1024, archs=[80])
    (row,) = report.rows
    assert row.cubin.registers <= 64
    assert row.cubin.spill_stores > 0 and row.cubin.spill_loads > 0 and row.cubin.stack > 0
    assert row.cubin.spill_stores % 4 == 0
    assert "sm_80: spilled registers go through local memory" in str(report)


@needs_nvrtc
def test_static_and_dynamic_shared_memory_count_together() -> None:
    source = own("__shared__ float s[9000]; s[threadIdx.x] = *x; __syncthreads(); *y = s[3];")
    alone = static_analysis(source, threads=64, archs=[90]).rows[0]
    assert (alone.cubin.shared, alone.cubin.barriers) == (36_000, 1)
    # 36,000 and the driver's 1,024 bytes: six times in 228 KiB
    assert (alone.occupancy.blocks, alone.occupancy.limited_by) == (6, ("shared memory",))
    both = static_analysis(source, threads=64, shared_bytes=40_000, archs=[90])
    assert both.rows[0].occupancy.blocks == 3
    assert "76,000" in str(both) and "40,000 bytes of dynamic shared memory" in str(both)


@needs_nvrtc
def test_the_kv_cache_s_type_is_a_define() -> None:
    _, variant = find_kernel("attention:three_pass")
    with pytest.raises(CompileError, match="KV"):
        compile_cubin(Source(variant.source, "attention.cu", {}), 90)


@needs_nvrtc
def test_errors_carry_the_lines_of_the_source() -> None:
    source = own("int i = threadIdx.x;\ny[i] = z[i];\n\ny[i] = 1")
    with pytest.raises(CompileError, match=r"mine\.cu does not compile for sm_90") as caught:
        compile_cubin(source, 90)
    assert caught.value.problems == (
        (3, 'identifier "z" is undefined'),
        (6, 'expected a ";"'),
    )
    assert "y[i] = z[i];" in str(caught.value)


@needs_nvrtc
@pytest.mark.parametrize(
    "header",
    ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "cooperative_groups.h", "warp.cuh", "kv.cuh"],
)
def test_headers_of_cuda_and_of_the_lab_are_found(header: str) -> None:
    assert compile_cubin(own("*y = *x;", f"#include <{header}>\n"), 90).kernel == "f"


@needs_nvrtc
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kernel": "gemv_q4_0"},
            "A kernel is named OP:VARIANT; op gemv_q4_0 has gemv_q4_0:block_per_row",
        ),
        ({"kernel": "gemv_q4_0:fast"}, "has no variant 'fast'"),
        ({"kernel": own("*y = *x;")}, "`threads`, the size of a block, must be given"),
        ({"kernel": "add:elementwise", "archs": [61]}, "does not compile for sm_61; it knows"),
        ({"kernel": "add:elementwise", "archs": [100]}, "There is no table for sm_100"),
        ({"kernel": "add:elementwise", "archs": [50]}, "needs sm_60 or newer; sm_50 was asked for"),
        (
            {"kernel": Source("__device__ int i;", "none.cu", {}), "threads": 32},
            "none.cu holds 0 kernels",
        ),
    ],
)
def test_what_cannot_be_analysed_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LabError, match=message):
        static_analysis(**arguments)  # type: ignore[arg-type]


@needs_nvrtc
def test_a_report_reads_as_text_as_html_and_as_a_record() -> None:
    report = static_analysis("gemv_q4_0:coalesced", archs=[75, 90])
    text, html = str(report), report._repr_html_()
    for row in report.rows:
        for shown in (text, html):
            assert f"sm_{row.cubin.arch}" in shown
            assert all(card.name in shown for card in row.cards)
    # 16 blocks on each of an H200's 132 SMs, 8 on each of a T4's 40
    assert "H200 (2,112)" in text and "T4 (320)" in text
    assert html.count("<tr>") == 3
    record = report.record()
    assert record["kernel"] == "gemv_q4_0:coalesced" and record["threads"] == 128
    assert [a["registers"] for a in record["archs"]] == [r.cubin.registers for r in report.rows]
    assert report.row(90).cubin.arch == 90
    with pytest.raises(LabError, match=r"has no sm_80; it has 75, 90"):
        report.row(80)


@needs_nvrtc
def test_the_command_prints_the_table_or_one_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["static", "add:elementwise", "--arch", "75", "--arch", "90"]) == 0
    assert capsys.readouterr().out == f"{static_analysis('add:elementwise', archs=[75, 90])}\n"
    assert cli.main(["static", "add:elementwise", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [a["arch"] for a in record["archs"]] == [f"sm_{arch}" for arch in ARCHS]
    assert cli.main(["static", "add:slow"]) == 1
    assert "has no variant 'slow'" in capsys.readouterr().err


@needs_nvrtc
@pytest.mark.skipif(why_no_sass() is not None, reason=str(why_no_sass()))
def test_the_command_shows_machine_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["static", "add:elementwise", "--sass", "90"]) == 0
    assert "| LDG.E x 2" in capsys.readouterr().out
    assert cli.main(["static", "add:elementwise", "--sass", "90", "--json"]) == 0
    loads = [i for i in json.loads(capsys.readouterr().out)["sass"] if i["kind"] == "load"]
    assert [(i["space"], i["width"], i["line"]) for i in loads] == [("global", 4, 6)] * 2


@needs_nvrtc
def test_fewer_registers_are_named_where_they_would_help() -> None:
    report = static_analysis(GREEDY, threads=1024, archs=[80])
    (row,) = report.rows
    assert row.occupancy.limited_by == ("registers",)
    assert row.fewer_registers == 32
    assert "sm_80: with 32 registers or fewer, more blocks would fit." in str(report)


def test_fewer_registers_do_not_help_where_something_else_is_the_limit() -> None:
    assert more_blocks_with(33, 0, 128, 90) == 32
    assert more_blocks_with(32, 0, 128, 90) is None
    assert more_blocks_with(64, 100 << 10, 128, 90) is None


# ---- where NVRTC may lie ----


def lay_out(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()


@pytest.mark.parametrize(
    ("windows", "roots", "library", "headers"),
    [
        (False, ["cu13"], "cu13/lib/libnvrtc.so.13", "cu13/include/cuda_fp16.h"),
        (True, ["cu13"], "cu13/bin/x86_64/nvrtc64_130_0.dll", "cu13/include/cuda_fp16.h"),
        (
            False,
            ["cuda_nvrtc", "cuda_runtime"],
            "cuda_nvrtc/lib/libnvrtc.so.12",
            "cuda_runtime/include/cuda_fp16.h",
        ),
        (False, ["conda"], "conda/lib/libnvrtc.so.13.5.37", "conda/targets/x86_64-linux/include/cuda_fp16.h"),
        (False, ["toolkit"], "toolkit/lib64/libnvrtc.so.13", "toolkit/include/cuda_fp16.h"),
    ],
)  # fmt: skip
def test_nvrtc_is_found_where_wheels_conda_and_the_toolkit_put_it(
    windows: bool,
    roots: list[str],
    library: str,
    headers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Path(library).parent
    lay_out(
        tmp_path,
        library,
        headers,
        str(beside / "libnvrtc-builtins.so.13.5"),
        str(beside / "libnvrtc-builtins.alt.so.12.9"),
        str(beside / "libnvrtc.alt.so.12"),
        str(beside / "nvrtc-builtins64_135.dll"),
    )
    monkeypatch.setattr(nvrtc, "WINDOWS", windows)
    monkeypatch.setattr(nvrtc, "_roots", lambda: (tmp_path / root for root in roots))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert nvrtc._library() == tmp_path / library
    assert nvrtc.find_header("cuda_fp16.h") == tmp_path / headers


def test_the_newest_of_several_versions_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, "lib/libnvrtc.so.9", "lib/libnvrtc.so.12", "lib/libnvrtc.so.13.5.37")
    monkeypatch.setattr(nvrtc, "WINDOWS", False)
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter([tmp_path]))
    assert nvrtc._library() == tmp_path / "lib/libnvrtc.so.13.5.37"


def test_where_there_is_no_nvrtc_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter([tmp_path]))
    assert "is not installed: pip install 'sovereign-lab[static]'" in str(why_no_nvrtc())
    lay_out(tmp_path, "lib/libnvrtc.so.13", "bin/x86_64/nvrtc64_130_0.dll")
    assert "without the CUDA headers (cuda_fp16.h)" in str(why_no_nvrtc())


def test_on_macos_it_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "does not exist for macOS" in str(why_no_nvrtc())
    monkeypatch.setattr(nvrtc, "_load", nvrtc._load.__wrapped__)
    with pytest.raises(LabError, match="does not exist for macOS"):
        static_analysis("add:elementwise")
