"""No false alarm on any kernel of the lab; and the one that is kept with its bug is found."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.cli import main
from sovereign_lab.devices.device import Source
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import OPS, Op, Variant, find_kernel
from sovereign_lab.measure.sanitizer import Report, sanitize
from sovereign_lab.measure.sanitizer.cases import kv_types, poisoned, sanitize_variant

KERNELS = [
    (op, variant, kv) for op in OPS.values() for variant in op.variants.values() for kv in kv_types(variant)
]  # fmt: skip
# A barrier of a block or a warp in a kernel of the lab, counted from 0, and an array that threads race for without it.
NEEDED_BARRIERS = [
    ("gemv_q4_0:block_per_row", 0, "partial"),
    ("gemv_q4_0:block_per_row", 1, "partial"),
    ("attention:three_pass", 0, "scores"),
    ("attention:three_pass", 0, "partial_max"),
    ("attention:online_softmax", 0, "warp_sums"),
    ("argmax:block", 0, "values"),
    ("gemv_q4_0:wmma", 0, "w_tiles"),
    ("gemv_q4_0:wmma", 1, "x_tiles"),
    ("gemv_q4_0:wmma", 2, "y_tiles"),
    ("gemm_q4_0:wmma", 0, "x_tiles"),
    ("gemm_q4_0:wmma", 1, "w_tiles"),
    ("gemm_q4_0:wmma", 2, "y_tiles"),
    ("gemm_q4_0:mma", 0, "x_tiles"),
    ("attention_tokens:mma", 0, "key_tile"),
    ("attention_tokens:mma", 1, "value_tile"),
    ("gemv_tiles:dp4a", 0, "memory"),
    ("gemv_tiles:columns", 0, "partial"),
    ("norm_ffn:fused", 0, "squares"),
    ("attention_split:mma", 0, "memory"),
    ("persistent:grid_barriers", 9, "next_token"),
    ("persistent:messages", 9, "next_token"),
    ("persistent:bulk", 10, "next_token"),
]
DOUBLE_OFFSET = FOLDER / "rope_kv" / "0_double_offset.cu"


@cache
def compile_all() -> None:
    """Every kernel of this file, in one go on all cores, into the cache."""
    sources = [Source.of(variant.path, {"KV": kv}) for _, variant, kv in KERNELS]
    sources += [without_barrier(*find_kernel(name), n) for name, n, _ in NEEDED_BARRIERS]
    device = SimtDevice(build="sanitized")
    device.compile_all([*sources, Source.of(DOUBLE_OFFSET, {"KV": "half"})])
    device.close()


def without_barrier(op: Op, variant: Variant, which: int) -> Source:
    """The variant without one of its barriers."""
    barriers = list(re.finditer(r"(__sync(threads|warp)\(|barrier_of\(THREADS)\);", variant.source))
    assert len(barriers) > which, f"{op.name}:{variant.name} has no barrier {which}"
    start, end = barriers[which].span()
    text = variant.source[:start] + variant.source[end:]
    return Source.of(text, {"KV": "half"}, variant.path.name)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


@pytest.mark.parametrize(
    ("op", "variant", "kv"), KERNELS, ids=[f"{o.name}:{v.name}:{kv}" for o, v, kv in KERNELS]
)
def test_kernels_of_the_lab_have_no_findings(op: Op, variant: Variant, kv: str) -> None:
    reports = list(sanitize_variant(op, variant, np.random.default_rng(7), kv))
    assert reports
    for report in reports:
        assert not report.findings, report


@pytest.mark.parametrize(("name", "which", "array"), NEEDED_BARRIERS)
def test_a_barrier_taken_away_is_missed(name: str, which: int, array: str) -> None:
    op, variant = find_kernel(name)
    source = without_barrier(op, variant, which)
    races = set()
    for case in cases(op, np.random.default_rng(7)):
        report = sanitize(
            source,
            op.grid(variant, case),
            variant.threads,
            case,
            shared_bytes=variant.shared_bytes(case),
            cooperative=variant.cooperative,
            uninitialised=poisoned(op, case),
        )
        races |= {finding.array for finding in report.findings if finding.kind == "race"}
    assert array in races


def double_offset(source: str | Path) -> list[Report]:
    op, variant = OPS["rope_kv"], OPS["rope_kv"].variant("fixed")
    return [
        sanitize(
            source,
            op.grid(variant, case),
            variant.threads,
            case,
            {"KV": "half"},
            name="0_double_offset.cu",
            uninitialised=poisoned(op, case),
        )
        for case in cases(op, np.random.default_rng(7))
    ]


def test_the_double_offset_is_found_on_a_cache_of_the_right_size() -> None:
    lines = DOUBLE_OFFSET.read_text().splitlines()
    guilty = {i for i, text in enumerate(lines, 1) if "store(key + (size_t)pos" in text}
    found = [f for report in double_offset(DOUBLE_OFFSET) for f in report.findings]
    # Up to half of the context the wrong slot exists; behind that it lies past the end.
    assert {f.line for f in found} == guilty
    assert {(f.kind, f.array) for f in found} == {("out of bounds", "keys")}
    assert all("past the end of `keys`" in f.explanation for f in found)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sanitize", "add:elementwise"]) == 0
    assert capsys.readouterr().out.count("no findings") == 4
    assert main(["sanitize", "add:elementwise", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kernel"] == "add:elementwise" and len(told["reports"]) == 4
    assert main(["sanitize", "add"]) == 1
    assert "op add has add:elementwise" in capsys.readouterr().err
