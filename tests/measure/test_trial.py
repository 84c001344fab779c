"""Right kernels pass, and what is wrong with others is said: by line, by parameter, by shape and row."""

import os
import pickle
import re
from pathlib import Path

import pytest

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.device import Source
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS, Op, Variant, op
from sovereign_lab.measure import trial as module
from sovereign_lab.measure.mine import edit
from sovereign_lab.measure.static.nvrtc import why_no_nvrtc
from sovereign_lab.measure.trial import ended_card, trial
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.trial.cases import faults, odd_cases
from sovereign_lab.measure.trial.compile import BUILDS_KEPT
from sovereign_lab.measure.trial.cost import edit_figures
from sovereign_lab.measure.worker import Worker, child
from sovereign_lab.measure.workload import DEFINES
from sovereign_lab.models import load_model

COALESCED = op("gemv_q4_0").variant("coalesced").source
START, LAST = "float sum = 0;", "if (lane == 0) y[row] = sum;"
VARIANTS = [
    pytest.param(o, v, id=f"{o.name}-{v.name}") for o in OPS.values() for v in o.variants.values()
]


def changed(before: str, after: str) -> str:
    assert before in COALESCED
    return COALESCED.replace(before, after)


def tried(simt: SimtDevice, source: str, **options: object) -> Card:
    return trial("gemv_q4_0", source, "coalesced", device=simt, line=2, **options)  # type: ignore[arg-type]


def answers(card: Card) -> dict[str, str]:
    return {s.question: s.answer for s in card.stages}


def line_of(source: str, text: str) -> int:
    """The line in a cell whose first line is a magic."""
    return 2 + next(i for i, line in enumerate(source.splitlines()) if text in line)


def test_a_right_kernel(any_device: Device) -> None:
    card = trial("gemv_q4_0", COALESCED, "coalesced", device=any_device)
    assert answers(card) == {"compiles": "yes", "safe": "yes", "right": "yes", "faster": "unknown"}
    assert card.good
    assert "7 odd shapes" in card.stage("right").says
    assert card.device == any_device.properties.name


@pytest.mark.parametrize(("which", "variant"), VARIANTS)
def test_every_variant_is_right(any_device: Device, which: Op, variant: Variant) -> None:
    made = edit(which.name, variant.source, variant.name)
    kernel = any_device.compile(Source(made.text, "mine.cu", DEFINES))
    for case in odd_cases(which.name):
        assert list(faults(any_device, kernel, made, case)) == []


def test_an_edit_may_round_less_than_its_parent_but_not_be_off_by_more(simt: SimtDevice) -> None:
    """Rounding to int8 moves a product by half a per cent or so: a scale that is 3 % off is no rounding."""
    tiles = op("gemv_tiles")
    rounds = tiles.variant("dp4a").source
    for source, right in (
        (tiles.variant("wide").source, True),
        (rounds.replace("activations.scale / 16", "activations.scale / 15.5f"), False),
    ):
        made = edit("gemv_tiles", source, "dp4a")
        kernel = simt.compile(Source(made.text, "mine.cu", DEFINES))
        found = [list(faults(simt, kernel, made, case)) for case in odd_cases("gemv_tiles")]
        assert [told == [] for told in found] == [right] * len(found)


# ---- compiles? ----


@pytest.mark.parametrize(
    ("before", "after", "at", "said"),
    [
        (START, "float sum = ;", "float sum = ;", "expected"),
        ("sum += scale", "summ += scale", "summ +=", "summ"),
        ("float sum", "flaot sum", "flaot", "flaot"),
        (START, "float sum = lane.x;", "lane.x", "lane"),
        (START, 'float sum = 0; asm("garbage");', "garbage", "garbage"),
        ('#include "warp.cuh"', '#include "wrap.cuh"', "wrap.cuh", "wrap.cuh"),
    ],
)
def test_what_does_not_compile_is_told_by_the_lines_of_the_cell(
    simt: SimtDevice, before: str, after: str, at: str, said: str
) -> None:
    source = changed(before, after)
    card = tried(simt, source)
    assert answers(card)["compiles"] == "no"
    first = card.stage("compiles").remarks[0]
    assert first.line == line_of(source, at)
    assert at in first.code
    assert said in first.says
    assert card.verdict.startswith(f"It does not compile: line {first.line}: ")


def test_a_missing_brace_is_counted(simt: SimtDevice) -> None:
    card = tried(simt, COALESCED.rstrip().removesuffix("}"))
    assert card.verdict == "It does not compile: There are 2 `{` and 1 `}`."


def test_locals_that_do_not_fit_a_stack_are_told(simt: SimtDevice) -> None:
    card = tried(simt, changed(START, "volatile float big[20000]; float sum = big[lane] = 0;"))
    assert answers(card)["compiles"] == "no"
    assert "bytes a thread" in card.verdict


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("const float* x,", "const double* x,", r"Parameter 2 is `const double\* x`.*float32 in"),
        ("float* y,", "const float* y,", r"Parameter 3 .*the kernel writes to it"),
        ("float* y,", "float y,", r"Parameter 3 is `float y`; expected `float\* y`"),
        ("int rows, int blocks", "int* rows, int blocks", "Parameter 4 .*a value, not a pointer"),
        ("int rows, int blocks_per_row", "int blocks_per_row, int rows", "Parameter 4 .* place"),
        (", int blocks_per_row)", ")", "It has 4 parameters; expected 5"),
        ("void gemv_q4_0(", "void gemv(", "called gemv; those of this op are called gemv_q4_0"),
        ('extern "C" ', "", 'written `extern "C" __global__'),
        ("int rows,", "std::string rows,", "cannot read the parameter `std::string rows`"),
    ],
)
def test_a_wrong_signature_hears_which_parameter(
    simt: SimtDevice, before: str, after: str, said: str
) -> None:
    card = tried(simt, changed(before, after))
    assert answers(card)["compiles"] == "no"
    assert any(re.search(said, remark.says) for remark in card.stage("compiles").remarks)
    first = card.stage("compiles").remarks[0]
    if "Parameter" in first.says:
        assert after.strip().split(",")[0] in first.code


@pytest.mark.skipif(why_no_nvrtc() is not None, reason="NVRTC is not installed")
@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("float sum = 0; abort();", "abort"),
        ("__shared__ volatile float big[20000]; float sum = big[lane] = 0;", "shared data"),
    ],
)
def test_what_only_a_gpus_compiler_refuses_is_told(simt: SimtDevice, after: str, said: str) -> None:
    source = changed(START, after)
    card = tried(simt, source)
    assert answers(card)["compiles"] == "no"
    assert said in card.verdict
    assert "NVRTC, which compiles for a GPU, does not" in card.stage("compiles").remarks[-1].says


@pytest.mark.skipif(why_no_nvrtc() is not None, reason="NVRTC is not installed")
def test_registers_and_shared_memory_are_told(simt: SimtDevice) -> None:
    says = tried(simt, COALESCED).stage("compiles").says
    assert re.search(r"sm_90: \d+ registers a thread, no spills, 0 bytes of shared memory", says)


# ---- safe? ----


@pytest.mark.parametrize(
    ("before", "after", "kind", "at"),
    [
        ("y[row] = sum", "y[row + 1] = sum", "out of bounds", "y[row + 1]"),
        (START, "float sum = *(volatile float*)0;", "out of bounds", "*)0"),
        (START, "float sum = 0; while (lane == 3) {}", "spin", "while"),
        (START, "float sum = 0; if (lane < 16) __syncthreads();", "deadlock", "__syncthreads"),
        (START, "float sum = *(float*)((char*)x + 2) * 0;", "misaligned", "+ 2"),
    ],
)
def test_what_is_grave_is_told_by_line_and_never_run(
    simt: SimtDevice, before: str, after: str, kind: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*args: object) -> None:
        raise AssertionError("the kernel was run on the device")

    monkeypatch.setattr(module, "faults", run)
    source = changed(before, after)
    card = tried(simt, source, seconds=1.0)
    assert answers(card) == {
        "compiles": "yes",
        "safe": "no",
        "right": "unknown",
        "faster": "unknown",
    }
    first = card.stage("safe").remarks[0]
    assert first.says.startswith(kind)
    assert first.line == line_of(source, at)
    assert card.verdict.startswith(f"It is not safe: {kind} in line {first.line}")
    assert not card.good


def test_a_race_is_told_and_the_result_too(simt: SimtDevice) -> None:
    race = "__shared__ float t[32]; t[lane] = lane; float sum = t[31 - lane] - 31 + lane;"
    card = tried(simt, changed(START, race))
    assert any(r.says.startswith("race") for r in card.stage("safe").remarks)
    assert answers(card)["safe"] == "no"
    assert answers(card)["right"] != "unknown"
    assert not card.good


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 2048}, "a block of 2048 threads; a GPU takes at most 1,024"),
        ({"shared_bytes": 300 * 1024}, "307200 bytes of shared memory"),
        ({"cooperative": True, "grid": 10_000}, "a cooperative launch keeps all"),
    ],
)
def test_a_launch_that_cannot_be_is_told(
    simt: SimtDevice, options: dict[str, int], said: str
) -> None:
    card = tried(simt, COALESCED, **options)
    assert answers(card)["compiles"] == "yes"
    assert said in card.verdict


def test_static_shared_memory_that_no_gpu_has_is_told(simt: SimtDevice) -> None:
    big = (
        "__shared__ volatile float big[80000]; big[threadIdx.x] = 0; float sum = big[threadIdx.x];"
    )
    card = tried(simt, changed(START, big))
    assert not card.good
    assert "shared" in card.verdict


def test_only_some_shapes_are_sanitized_unless_thorough(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SANITIZER_SECONDS", 0.0)
    late = changed(START, "float sum = 0; if (rows == 6) y[6] = 1;")
    some = tried(simt, late)
    assert "1 of 7 shapes" in some.stage("safe").says
    assert some.verdict.startswith("It is wrong: at 1 of 7 shapes; rows = 6, blocks_per_row = 70")
    assert "wrote outside `y`: at `y[6]`, and the array has elements 0 to 5" in some.verdict
    all_of_them = tried(simt, late, thorough=True)
    assert all_of_them.verdict.startswith("It is not safe: out of bounds in line")
    assert "rows = 6" in all_of_them.verdict


def test_without_the_sanitizers_tools_the_card_says_so(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "why_no_sanitizer", lambda: "nm is missing: install binutils.")
    card = tried(simt, COALESCED)
    assert answers(card)["safe"] == "unknown"
    assert "nm is missing" in card.stage("safe").says
    assert card.good
    assert "not checked for safety" in card.verdict


# ---- right? ----


def test_a_wrong_result_is_told_by_shape_row_and_value(simt: SimtDevice) -> None:
    card = tried(simt, changed(LAST, "if (lane == 0) y[row] = row % 4 == 3 ? 2 * sum : sum;"))
    case = odd_cases("gemv_q4_0")[1]
    expected = op("gemv_q4_0").reference(case)["y"][3]
    says = card.stage("right").says
    assert answers(card)["safe"] == "yes"
    assert says.startswith(
        "at 5 of 7 shapes; rows = 5, blocks_per_row = 2: `y` is wrong at 1 of 5 rows (3): "
    )
    assert f"`y[3]` should be {expected:.6g} and is {2 * expected:.6g}" in says


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("if (lane == 0 && row != 2) y[row] = sum;", "`y` is not written at 1 of 5 rows (2)"),
        (
            "if (lane == 0) y[row] = sum - sum > 0 ? 1 : 0.0f / (sum - sum);",
            "`y` is NaN at its one",
        ),
        ("if (lane == 0) { y[row] = sum; ((float*)x)[0] = 3; }", "`x` is an input, and the kernel"),
    ],
)
def test_what_else_can_be_wrong(simt: SimtDevice, last: str, said: str) -> None:
    card = tried(simt, changed(LAST, last))
    assert answers(card)["right"] == "no"
    assert said in card.stage("right").says
    assert not card.good


def test_a_cache_written_at_the_wrong_place_is_told(simt: SimtDevice) -> None:
    source = op("rope_kv").variant("fixed").source
    broken = source.replace("(size_t)pos *", "(size_t)(pos + 1) *")
    assert broken != source
    made = edit("rope_kv", broken)
    kernel = simt.compile(Source(made.text, "mine.cu", DEFINES))
    told = list(faults(simt, kernel, made, odd_cases("rope_kv")[1]))
    assert any("`keys`" in t for t in told)


def test_integers_are_compared_exactly(simt: SimtDevice) -> None:
    source = op("argmax").variant("block").source
    made = edit(
        "argmax", source.replace("best[0] =", "best[0] = 1 +").replace("*best =", "*best = 1 +")
    )
    assert made.source != source
    kernel = simt.compile(Source(made.text, "mine.cu", DEFINES))
    told = list(faults(simt, kernel, made, odd_cases("argmax")[0]))
    assert told == ["`best` is wrong at its one element: `best[0]` should be 0 and is 1."]


# ---- faster? ----


def test_counts_and_times_against_the_parent(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "model", load_model)
    card = trial(
        "gemv_q4_0", COALESCED, "warp_per_row", device=simt, inspect=True, time=True, engine=True,
        model="synthetic:tiny",
    )  # fmt: skip
    counts = {c.what: c for c in card.counts}
    sectors = counts["sectors a load request"]
    assert sectors.mine < sectors.parent
    assert counts["store sectors"].mine == counts["store sectors"].parent
    assert card.alone is not None
    assert card.alone.floor_us is None
    assert card.alone.comparison.base == "warp_per_row"
    assert len(card.alone.comparison.base_ms) >= 5
    assert card.engine is not None
    assert card.engine.logits_distance < 1e-4
    assert card.engine.same_tokens == card.engine.tokens == 16
    faster = card.stage("faster")
    assert faster.answer == "unknown"  # a CPU that imitates a GPU cannot say
    assert "says nothing about a GPU" in faster.says


def test_a_cooperative_grid_goes_all_the_way(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sanitizer, the shapes, the counts, the times and the engine launch it alike: else grid.sync() fails."""
    monkeypatch.setattr(child, "model", load_model)
    source = """#include <cooperative_groups.h>
extern "C" __global__ void add(float* x, const float* y, int n) {
  cooperative_groups::this_grid().sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] += y[i];
}
"""
    card = trial(
        "add", source, device=simt, grid=3, cooperative=True, inspect=True, time=True, engine=True,
        model="synthetic:tiny",
    )  # fmt: skip
    assert card.good, card.verdict
    assert card.launch == "256 threads a block, a grid of 3, cooperative"
    assert card.alone is not None and card.engine is not None and card.counts
    assert card.engine.same_tokens == card.engine.tokens


def test_a_kernel_that_fails_at_a_models_size_is_told(simt: SimtDevice) -> None:
    wide = "if (rows == 128 && blocks_per_row == 4 && lane < 16) __syncthreads();"
    card = tried(simt, changed(START, f"{START} {wide}"), time=True, model="synthetic:tiny")
    assert (answers(card)["safe"], answers(card)["right"]) == ("yes", "no")
    assert "it fails at a model's size. Kernel gemv_q4_0" in card.verdict
    assert not card.good


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": True, "phase": "99"}, "no phase '99'"),
        ({"engine": True, "model": "nothing"}, "nothing"),
        ({"time": True, "model": "nothing"}, "nothing"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused_before_anything_is_compiled(
    simt: SimtDevice, options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compile_edit", None)
    with pytest.raises(LabError, match=said):
        tried(simt, COALESCED, **options)


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_is_timed_with_its_floor() -> None:
    card = trial(
        "logits", op("logits").variant("coalesced").source, "thread_per_row", rows_per_block=4,
        device=open_device("cuda"), time=True, model="synthetic:tinyllama-1.1b",
    )  # fmt: skip
    assert card.alone is not None and card.alone.floor_us is not None
    assert min(card.alone.microseconds) > card.alone.floor_us
    assert "times as fast" in card.stage("faster").says


# ---- in a worker ----


def test_a_card_travels(simt: SimtDevice) -> None:
    card = tried(simt, changed(START, "float sum = 0"))
    assert pickle.loads(pickle.dumps(card)) == card


def test_a_trial_in_a_worker_uses_its_device() -> None:
    with Worker("simt") as worker:
        card = worker.call(trial, "add", op("add").variant("elementwise").source)
        assert card.good
        with pytest.raises(LabError, match="no op 'nothing'"):
            worker.call(trial, "nothing", "")


def test_bench_compiles_each_edit_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (figure,) = edit_figures("simt", edits=2)
    assert (figure.unit, figure.repeats) == ("s", 2)
    # The one that waits for the worker, and two; each as it is and sanitized.
    assert len(list((tmp_path / "sovereign-lab" / "simt").glob("mine-*.so"))) == 6


def test_old_builds_of_edits_do_not_pile_up(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "sovereign-lab" / "simt"
    folder.mkdir(parents=True)
    for i in range(BUILDS_KEPT + 5):
        for name in ("mine", "other"):
            (folder / f"{name}-{i:03}.so").touch()
            os.utime(folder / f"{name}-{i:03}.so", (i, i))
    assert tried(simt, changed("float sum", "flaot sum")).stage("compiles").answer == "no"
    left = sorted(p.name for p in folder.glob("mine-*"))
    assert left == [f"mine-{i:03}.so" for i in range(5, BUILDS_KEPT + 5)]
    assert len(list(folder.glob("other-*"))) == BUILDS_KEPT + 5


def test_the_card_of_a_worker_that_ended() -> None:
    made = edit("gemv_q4_0", COALESCED)
    at_run = ended_card(made, "Kernel mine <<<1, 128>>> crashed.", compiled=True)
    assert answers(at_run) == {
        "compiles": "yes",
        "safe": "no",
        "right": "unknown",
        "faster": "unknown",
    }
    assert at_run.verdict == "It is not safe: Kernel mine <<<1, 128>>> crashed."
    at_compiler = ended_card(made, "The compiler had not ended.", compiled=False)
    assert answers(at_compiler)["compiles"] == "no"
    assert not at_run.good and not at_compiler.good
