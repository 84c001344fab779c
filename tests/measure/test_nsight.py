"""Nsight Compute's output is read right, its absence is explained, and two sides are compared to the last digit."""

import json
import os
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import sovereign_lab as sl
from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS, op
from sovereign_lab.measure import nsight
from sovereign_lab.measure.nsight import (
    DURATION,
    HARDWARE,
    IDEAL_WAVEFRONTS,
    L2_SECTORS,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    METRICS,
    OCCUPANCY,
    REGISTERS,
    STORE_REQUESTS,
    STORE_SECTORS,
    WAVEFRONTS,
)
from sovereign_lab.measure.nsight import compare as nsight_compare
from sovereign_lab.measure.nsight import target as nsight_target
from sovereign_lab.measure.nsight.compare import Counts, Report, Row, Side, count_ours, join
from sovereign_lab.models.model import Config

SMALL = Config("llama", "Small", 1, 64, 96, 4, 2, 32, 32, 1e4, 1e-5, 128, 70)

RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "gemv_q4_0" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "add" - 1: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","launch__registers_per_thread",\
"memory_l2_theoretical_sectors_global","sm__maximum_warps_per_active_cycle_pct"
"","","","","","","","","","","","ns","request","register/thread","sector","%"
"0","4711","python3.12","127.0.0.1","gemv_q4_0","1","13","(128, 1, 1)","(128, 1, 1)","0","9.0",\
"8,320","50,176","31","1362432 (1360000; 2432)","100"
"1","4711","python3.12","127.0.0.1","add(float *, const float *, int)","1","13","(256, 1, 1)","(1, 1, 1)","0","9.0",\
"2048.5","16","10","n/a","62.5"
"""
DETAILS = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","python3.12","127.0.0.1","gemv_q4_0","1","7","(128, 1, 1)","(128, 1, 1)","0","9.0",\
"Command line profiler metrics","gpu__time_duration.sum","ns","8,320"
"0","4711","python3.12","127.0.0.1","gemv_q4_0","1","7","(128, 1, 1)","(128, 1, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","request","50,176"
"1","4711","python3.12","127.0.0.1","add","1","7","(256, 1, 1)","(1, 1, 1)","0","9.0",\
"Command line profiler metrics","launch__registers_per_thread","register/thread","10"
"""
NO_PERMISSION = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the \
target device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==WARNING== No kernels were profiled.
"""


# ---- reading ncu ----


def test_the_raw_page_is_read_launch_by_launch() -> None:
    gemv, add = nsight.parse_csv(RAW)
    assert gemv.function == "gemv_q4_0"
    assert gemv.values == {
        DURATION: 8320, LOAD_REQUESTS: 50176, REGISTERS: 31, L2_SECTORS: 1362432, OCCUPANCY: 100,
    }  # fmt: skip
    # A cell without a number is not a nought.
    assert add.values == {DURATION: 2048.5, LOAD_REQUESTS: 16, REGISTERS: 10, OCCUPANCY: 62.5}


def test_the_details_page_is_read_too() -> None:
    gemv, add = nsight.parse_csv(DETAILS)
    assert gemv.values == {DURATION: 8320, LOAD_REQUESTS: 50176}
    assert (add.function, add.values) == ("add", {REGISTERS: 10})


def test_output_without_a_table_has_no_launches() -> None:
    assert nsight.parse_csv(NO_PERMISSION) == nsight.parse_csv("") == []


def test_units_are_not_taken_for_a_launch_when_nothing_was_profiled() -> None:
    head = "\n".join(RAW.splitlines()[4:6])
    assert nsight.parse_csv(head) == []


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (NO_PERMISSION, "ERR_NVGPUCTRPERM"),
        ("==ERROR== Failed to connect.\n==ERROR== Try again.", "ncu says: Failed to connect. Try"),
        ("==WARNING== No kernels were profiled.", "saw no launch"),
        ("Traceback\nImportError: no cupy\n", "ImportError: no cupy"),
        ("", "its last words: none"),
    ],
)
def test_the_reason_is_said_in_words(output: str, words: str) -> None:
    assert words in nsight.explain(output)


def test_an_unknown_metric_is_told_from_one_whose_name_it_begins_with() -> None:
    said = "==ERROR== Failed to find metric regex:^memory_l1_wavefronts_shared(\\.(sum|min))?$"
    assert nsight.unknown_metrics(said, list(METRICS)) == [WAVEFRONTS]
    said = "==ERROR== Failed to find metric regex:^gpu__time_duration\\.(sum|avg)$"
    assert nsight.unknown_metrics(said, list(METRICS)) == [DURATION]
    assert nsight.unknown_metrics(RAW, list(METRICS)) == []


# ---- running ncu, with a program that prints what ncu prints ----


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> Path:
    """An `ncu` whose Python `body` knows `metrics`, `log` and `job`; its metrics of each run go to a file."""
    program = folder / "ncu"
    runs = folder / "runs"
    program.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent(
            f"""\
            import json, sys
            from pathlib import Path
            if "--version" in sys.argv:
                sys.exit(print("NVIDIA (R) Nsight Compute\\nVersion 2025.3.1.0 (build 1)"))
            at = sys.argv.index
            metrics = sys.argv[at("--metrics") + 1].split(",")
            log = Path(sys.argv[at("--log-file") + 1])
            job = json.loads(Path(sys.argv[-1]).read_text())
            with Path({str(runs)!r}).open("a") as f:
                f.write(json.dumps(metrics) + "\\n")

            def launched(*lines):
                Path(job["launched"]).write_text("".join(json.dumps(l) + "\\n" for l in lines))

            def table(*names):
                head = ["ID", "Kernel Name", *metrics]
                rows = [head, ["", "", *["unit"] * len(metrics)]]
                rows += [[str(i), n, *[str(100 * i + k) for k in range(len(metrics))]] for i, n in enumerate(names)]
                log.write_text("==PROF== x\\n" + "".join(",".join(f'"{{c}}"' for c in r) + "\\n" for r in rows))
            """
        )
        + textwrap.dedent(body)
    )
    program.chmod(0o755)
    monkeypatch.setattr(nsight, "why_no_gpu", lambda: None)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return runs


def asked(runs: Path) -> list[list[str]]:
    return [json.loads(line) for line in runs.read_text().splitlines()]


TWO = ["gemv_q4_0:coalesced", "gemv_q4_0:float4"]
LAUNCHED = """
launched(*({"kernel": k, "function": k.split(":")[0]} for k in job["kernels"]))
"""


def test_launches_go_to_kernels_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A kernel that is not ours, of a library, is passed over.
    body = LAUNCHED + 'table("gemv_q4_0", "cupy_fill", "gemv_q4_0")'
    runs = pretend(monkeypatch, tmp_path, body)
    counters = nsight.count(TWO, SMALL)
    assert counters.reason is None
    assert counters.missing == ()
    assert [counters.values[k][LOAD_REQUESTS] for k in TWO] == [0, 200]
    assert asked(runs) == [list(METRICS)]


def test_one_unknown_metric_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = f"""
    if "{OCCUPANCY}" in metrics:
        sys.exit("==ERROR== Failed to find metric regex:^{OCCUPANCY}$")
    {LAUNCHED.strip()}
    table(*["gemv_q4_0"] * 2)
    """
    runs = pretend(monkeypatch, tmp_path, body)
    counters = nsight.count(TWO, SMALL)
    assert counters.missing == (OCCUPANCY,)
    assert set(counters.values[TWO[1]]) == set(METRICS) - {OCCUPANCY}
    assert len(asked(runs)) == 2


def test_where_the_list_is_refused_the_hardware_counters_are_asked_for_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = f"""
    if "{WAVEFRONTS}" in metrics:
        sys.exit("==ERROR== Failed to instrument.")
    {LAUNCHED.strip()}
    table(*["gemv_q4_0"] * 2)
    """
    pretend(monkeypatch, tmp_path, body)
    assert set(nsight.count(TWO, SMALL).values[TWO[0]]) == set(HARDWARE)


def test_without_permission_it_is_asked_once_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = pretend(monkeypatch, tmp_path, f"log.write_text({NO_PERMISSION!r})")
    counters = nsight.count(TWO, SMALL)
    assert counters.values == {}
    assert "NVreg_RestrictProfilingToAdminUsers" in str(counters.reason)
    assert len(asked(runs)) == 1


def test_a_kernel_that_failed_does_not_shift_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = """
    a, b = job["kernels"]
    launched({"kernel": a, "error": "LabError: too old"}, {"kernel": b, "function": "gemv_q4_0"})
    table("gemv_q4_0")
    """
    pretend(monkeypatch, tmp_path, body)
    counters = nsight.count(TWO, SMALL)
    assert list(counters.values) == [TWO[1]]
    assert counters.failed == {TWO[0]: "LabError: too old"}


def test_launches_that_cannot_be_told_apart_are_not_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, LAUNCHED + 'table("gemv_q4_0")')
    kept = tmp_path / "kept.txt"
    counters = nsight.count(TWO, SMALL, keep=kept)
    assert counters.values == {}
    assert "1 launches and 2 were made" in str(counters.reason)
    # What was printed is there to be read by a person.
    assert len(nsight.parse_csv(kept.read_text())) == 1
    assert kept.read_text().count('launched {"kernel": "gemv_q4_0:') == 2


def test_no_time_is_a_reason_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, "")
    assert nsight.count(TWO, SMALL, seconds=0).values == {}


def test_an_ncu_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = pretend(monkeypatch, tmp_path, "import time; time.sleep(600)")
    counters = nsight.count(TWO, SMALL, seconds=2)
    assert "more than 2 s" in str(counters.reason)
    assert len(asked(runs)) == 1


def test_ncu_is_found_in_the_usual_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(nsight, "INSTALL_PLACES", (f"{tmp_path}/cuda-*/bin/ncu",))
    assert nsight.find_ncu() is None
    for version in ("12.9", "13.0"):
        place = tmp_path / f"cuda-{version}/bin"
        place.mkdir(parents=True)
        (place / "ncu").touch(mode=0o755)
    assert nsight.find_ncu() == str(tmp_path / "cuda-13.0/bin/ncu")


def test_without_a_gpu_or_ncu_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsight, "why_no_gpu", lambda: "the driver lists no GPU.")
    assert nsight.count(TWO, SMALL).reason == "no GPU: the driver lists no GPU."
    monkeypatch.setattr(nsight, "why_no_gpu", lambda: None)
    monkeypatch.setattr(nsight, "find_ncu", lambda: None)
    assert "not installed" in str(nsight.count(TWO, SMALL).reason)


# ---- one kernel ----


def test_profile_kernel_times_every_op_and_says_why_there_are_no_counters(simt: SimtDevice) -> None:
    assert sl.profile_kernel is nsight.profile_kernel
    for name, which in OPS.items():
        found = nsight.profile_kernel(f"{name}:{next(iter(which.variants))}", simt, SMALL)
        assert len(found.samples) == nsight.REPEATS
        assert found.us > 0
        assert "SIMT device has none" in str(found.reason)
        assert simt.properties.times in str(found)
        assert "No counters" in found._repr_html_()


def test_counters_stand_in_the_table(simt: SimtDevice) -> None:
    found = nsight.profile_kernel("add:elementwise", simt, SMALL)
    found = replace(
        found,
        counters={LOAD_SECTORS: 1362432.0, OCCUPANCY: 62.5},
        missing=(WAVEFRONTS,),
        reason=None,
    )
    for text in (str(found), found._repr_html_()):
        assert "1,362,432" in text
        assert "62.50" in text
        assert f"Not counted by this ncu: {WAVEFRONTS}." in text


@pytest.mark.parametrize(
    ("name", "words"),
    [("add", "OP:VARIANT"), ("add:fast", "no variant 'fast'"), ("plus:fast", "no op 'plus'")],
)
def test_a_kernel_that_there_is_not_is_refused(simt: SimtDevice, name: str, words: str) -> None:
    with pytest.raises(LabError, match=words):
        nsight.profile_kernel(name, simt, SMALL)


@pytest.mark.gpu
def test_a_gpu_gives_counters_or_a_reason(any_device: Device) -> None:
    found = nsight.profile_kernel("gemv_q4_0:coalesced", any_device, SMALL)
    assert found.reason or found.counters[LOAD_REQUESTS] > 0


def run_job(
    folder: Path, device: Device, kernels: list[str], seconds: float
) -> list[dict[str, str]]:
    """What the target reports of a job."""
    job, launched = folder / "job.json", folder / "launched"
    content = {"config": asdict(SMALL), "position": 5, "seed": 0, "tokens": 3}
    content |= {"launched": str(launched)}
    job.write_text(json.dumps({**content, "kernels": kernels, "seconds": seconds}))
    nsight_target.main(job, device)
    return [json.loads(line) for line in launched.read_text().splitlines()]


def test_the_target_launches_what_it_can_and_reports_the_rest(
    simt: SimtDevice, tmp_path: Path
) -> None:
    kernels = ["add:elementwise", "add:none", "attention:online_softmax"]
    first, second, third = run_job(tmp_path, simt, kernels, seconds=600)
    assert first == {"kernel": kernels[0], "function": "add"}
    assert second["error"].startswith("LabError: Op add has no variant")
    assert third == {"kernel": kernels[2], "function": "attention"}


def test_the_target_launches_nothing_when_its_time_is_up(simt: SimtDevice, tmp_path: Path) -> None:
    (only,) = run_job(tmp_path, simt, ["add:elementwise"], seconds=-1)
    assert "no time left" in only["error"]


def test_the_command_asks_for_base_units_and_leaves_clocks() -> None:
    line = nsight.command("ncu", ["a", "b"], Path("log"), Path("job"))
    assert line[line.index("--metrics") + 1] == "a,b"
    assert line[line.index("--clock-control") + 1] == "none"
    assert line[line.index("--print-units") + 1] == "base"
    assert line[-3:] == ["-m", "sovereign_lab.measure.nsight.target", "job"]


# ---- both sides ----


def side(arch: str = "sm_90", **values: float | None) -> Side:
    names = {"ld": LOAD_REQUESTS, "regs": REGISTERS, "occ": OCCUPANCY, "waves": WAVEFRONTS}
    counts = Counts("abc", {names[k]: v for k, v in values.items() if v is not None})
    return Side({"date": "2026-11-30", "arch": arch}, asdict(SMALL), 63, 0, {"add:e": counts})


def test_equal_and_different_counts_are_told_apart() -> None:
    report = join(side(ld=100, regs=32, occ=62.5), side(ld=104, regs=32, occ=62.499, waves=7))
    by_metric = {row.metric: row for row in report.rows}
    assert by_metric[LOAD_REQUESTS].equal is False
    assert str(by_metric[LOAD_REQUESTS]) == "100 / 104"
    assert str(by_metric[REGISTERS]) == "32 ="
    assert by_metric[OCCUPANCY].equal is True
    assert by_metric[WAVEFRONTS].equal is None  # ours did not count it
    assert report.agreement([LOAD_REQUESTS]) == (0, 1)
    assert report.agreement([REGISTERS, OCCUPANCY]) == (1, 1)
    assert report.agreement([WAVEFRONTS]) == (0, 0)
    assert report.differences() == [by_metric[LOAD_REQUESTS]]
    assert "not explained" in str(report)


def test_counts_are_equal_only_to_the_last_digit() -> None:
    assert Row("k", LOAD_REQUESTS, 1_362_432, 1_362_433).equal is False
    assert Row("k", LOAD_REQUESTS, 1_362_432, 1_362_432).equal is True


def test_a_difference_carries_its_cause() -> None:
    report = join(side(ld=100, regs=32), side(ld=104, regs=32), {"add:e": "SASS merges two loads"})
    assert [row.cause for row in report.rows] == ["SASS merges two loads", None]
    assert "SASS merges two loads" in str(report)


def test_registers_are_compared_on_one_arch_only() -> None:
    report = join(side("sm_90", ld=1, regs=30), side("sm_120", ld=1, regs=40))
    assert report.differences() == []
    assert report.agreement([REGISTERS]) == (0, 0)


def test_a_source_that_changed_is_not_compared() -> None:
    old = side(ld=1)
    new = replace(old, kernels={"add:e": replace(old.kernels["add:e"], source="def")})
    report = join(old, new)
    assert report.rows == ()
    assert "changed" in report.reasons["add:e"]


def test_a_header_that_changed_makes_another_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nsight_compare, "INCLUDE", tmp_path)
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("int a;\n")
    (tmp_path / "0_k.cu").write_text('#include <cuda_fp16.h>\n#include "outer.cuh"\n')
    kernel = replace(op("add").variant("elementwise"), path=tmp_path / "0_k.cu")
    before = nsight_compare.fingerprint(kernel)
    assert nsight_compare.fingerprint(kernel) == before
    (tmp_path / "inner.cuh").write_text("int b;\n")
    assert nsight_compare.fingerprint(kernel) != before


def test_other_arguments_are_refused() -> None:
    with pytest.raises(LabError, match="position is 63 in ours and 64"):
        join(side(ld=1), replace(side(ld=1), position=64))


def test_a_kernel_without_counts_keeps_its_reason() -> None:
    failed = replace(side(), kernels={"add:e": Counts("abc", {}, "it crashed")})
    report = join(side(ld=1), failed)
    assert report.reasons == {"add:e": "it crashed"}
    assert report.agreement([LOAD_REQUESTS]) == (0, 0)
    assert join(side(ld=1), replace(side(), kernels={})).reasons == {
        "add:e": "only ours counted it"
    }


def test_sides_and_reports_survive_a_file(tmp_path: Path) -> None:
    ours, theirs = side(ld=100, regs=32), side(ld=104, regs=32)
    ours.save(tmp_path / "ours.json")
    assert Side.load(tmp_path / "ours.json") == ours
    report = join(ours, theirs)
    path = report.record(tmp_path / "runs")
    assert path.name == "2026-11-30-sm_90-small-microscope.json"
    assert Report.load(path) == report
    assert json.loads(path.read_text())["rows"][0]["equal"] is False


def test_our_side_has_what_the_microscope_counts() -> None:
    kernel = "add:elementwise"
    counted = count_ours([kernel], SMALL).kernels[kernel]
    # 64 floats in two warps: x and y are read, x is written, 4 sectors a request.
    assert counted.values[LOAD_REQUESTS] == 4
    assert counted.values[LOAD_SECTORS] == 16
    assert counted.values[STORE_REQUESTS] == 2
    assert counted.values[STORE_SECTORS] == 8
    assert counted.values[L2_SECTORS] == 24
    assert counted.values[WAVEFRONTS] == counted.values[IDEAL_WAVEFRONTS] == 0
    assert counted.source == nsight_compare.fingerprint(op("add").variant("elementwise"))


def test_our_side_counts_shared_wavefronts() -> None:
    kernel = "rmsnorm:block"
    counted = count_ours([kernel], SMALL).kernels[kernel]
    # 8 warps leave their sums, each reads the 8 of them back, without a conflict.
    assert counted.values[WAVEFRONTS] == counted.values[IDEAL_WAVEFRONTS] > 0


def test_two_places_make_one_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simt: SimtDevice, capsys: pytest.CaptureFixture
) -> None:
    kernel = "add:elementwise"
    runs = pretend(monkeypatch, tmp_path, LAUNCHED + 'table("add")')
    theirs = nsight_compare.count_nsight([kernel], SMALL, simt)
    assert len(asked(runs)) == 1
    assert theirs.environment["profiler"] == "Nsight Compute 2025.3.1.0"
    theirs.save(tmp_path / "nsight.json")
    count_ours([kernel], SMALL).save(tmp_path / "ours.json")
    files = [str(tmp_path / name) for name in ("ours.json", "nsight.json")]
    monkeypatch.setattr(sys, "argv", ["x", "--join", *files, "--record", str(tmp_path)])
    nsight_compare.main()
    printed = capsys.readouterr().out
    assert "4 / 0" in printed
    assert "requests and sectors: equal on 0 of 1 kernels" in printed
    assert len(list(tmp_path.glob("*-microscope.json"))) == 1


def test_without_counters_the_gpu_side_says_why(
    monkeypatch: pytest.MonkeyPatch, simt: SimtDevice
) -> None:
    monkeypatch.setattr(nsight, "why_no_gpu", lambda: "the driver lists no GPU.")
    with pytest.raises(LabError, match="no GPU: the driver lists no GPU"):
        nsight_compare.count_nsight(TWO, SMALL, simt)
