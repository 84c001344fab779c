"""A profile counts what a forward pass launches and what it must move; no test asserts a time."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sovereign_lab as sl
from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.measure.profile import (
    Launch,
    OpProfile,
    Profile,
    least_bytes,
    main,
    op_ms,
    profile,
    timeline,
)
from sovereign_lab.measure.roofline import find_gpu
from sovereign_lab.measure.timing import start_at
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.models.model import Config, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

SHAPE = SyntheticShape(2, 64, 96, 2, 1, 32, 300, context=64)


@pytest.fixture(scope="module")
def engine(any_device: Device, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", SHAPE, seed=3)
    return Engine(load_model(path), any_device, "8b")


@pytest.fixture(scope="module")
def measured(engine: Engine) -> Profile:
    return profile(engine, position=5)


def made(gpu: str | None = "H200") -> Profile:
    """A profile with figures that are easy to check: 100 us, of which 70 are two ops' own."""
    found = find_gpu(gpu) if gpu else None
    rows = (
        OpProfile("embedding", "copy_row", 1, 10.0, (10.0,), 0.1, 4_000, 0.1 if gpu else None),
        OpProfile("gemv_q4_0", "float4", 3, 60.0, (60.0,), 0.6, 42_700_000, 0.2 if gpu else None),
    )
    launches = (Launch("embedding", "copy_row", 0.0, 5.0), Launch("gemv_q4_0", "float4", 5.0, 20.0))
    return Profile(
        model="m",
        phase="8c",
        device="a GPU" if gpu else "a CPU",
        kind="cuda" if gpu else "simt",
        times="the time of <a GPU>" if gpu else "wall time of a CPU",
        position=16,
        pass_us=100.0,
        pass_samples=(100.0,),
        ops=rows,
        timeline=launches,
        gpu=found,
    )


def test_every_op_of_the_pass_is_there_once(measured: Profile, engine: Engine) -> None:
    assert {row.op: row.launches for row in measured.ops} == Counter(
        call.op for call in engine.decode_calls
    )
    for row in measured.ops:
        assert row.us > 0
        assert row.variant == engine.phase.plan[row.op]
        assert row.share == row.us / measured.pass_us


def test_the_rest_is_what_ops_leave_of_the_pass(measured: Profile) -> None:
    total = sum(row.us for row in measured.ops) + measured.rest_us
    assert total == pytest.approx(measured.pass_us)
    assert made().rest_us == pytest.approx(30)


def test_the_timeline_has_every_launch_in_order(measured: Profile, engine: Engine) -> None:
    assert [launch.op for launch in measured.timeline] == [call.op for call in engine.decode_calls]
    assert measured.timeline[0].start_us == 0
    for before, after in zip(measured.timeline, measured.timeline[1:], strict=False):
        assert after.start_us == pytest.approx(before.start_us + before.us)
        assert after.us > 0


def test_branches_of_a_phase_with_streams_are_in_the_timeline(engine: Engine) -> None:
    streams = engine.with_phase("4")
    assert [launch.op for launch in timeline(streams, 3)] == [c.op for c in streams.decode_calls]


def test_a_profile_leaves_the_engine_right(engine: Engine) -> None:
    before = engine.generate("the", max_tokens=8).token_ids
    profile(engine, position=3)
    assert engine.generate("the", max_tokens=8).token_ids == before


def test_ops_can_be_timed_at_the_last_position(engine: Engine) -> None:
    # `advance` moves on with each replay: 20 of them from here on would write behind the tokens.
    last = engine.context - 1
    start_at(engine, last)
    assert len(op_ms(engine, "advance", last, replays=20, repeats=2)) == 2
    assert int(engine.device.to_host(engine.state.position)[0]) == engine.context


def test_a_position_without_room_is_refused(engine: Engine) -> None:
    with pytest.raises(LabError, match=rf"at most position \d+ in a context of 64; got {63}"):
        profile(engine, position=63)
    with pytest.raises(LabError, match="got -1"):
        profile(engine, position=-1)


def test_a_recorded_profile_is_the_one_that_was_measured(tmp_path: Path) -> None:
    for one in (made(), made(gpu=None)):
        path = one.record(tmp_path, {"date": "2026-11-30"})
        assert Profile.load(path) == one
    assert path.name == "2026-11-30-a-cpu-m-phase-8c-profile.json"


def test_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_synthetic(tmp_path / "m.gguf", SHAPE, seed=3)
    line = [
        "x",
        "--device",
        "simt",
        "--model",
        str(model),
        "--phase",
        "5",
        "--record",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", line)
    main()
    assert "phase 5, position 16, SIMT device" in capsys.readouterr().out
    assert [Profile.load(path).phase for path in tmp_path.glob("*.json")] == ["5"]


def test_it_is_exported() -> None:
    assert sl.profile is profile


# ---- bytes ----


def moved(traced: Trace, scratch: tuple[str, ...]) -> int:
    """Distinct bytes of the arrays that were read, and distinct bytes written; without scratch."""
    total = 0
    places = [(base, base + size) for name, base, size in traced.arrays if name in scratch]
    for store in (0, 1):
        mine = traced.events[(traced.events["store"] == store) & (traced.events["shared"] == 0)]
        for first, end in places:
            mine = mine[(mine["address"] < first) | (mine["address"] >= end)]
        sizes = mine["size"].astype(np.uint64)
        touched = [mine["address"][sizes > k] + np.uint64(k) for k in range(int(max(sizes)))]
        total += len(np.unique(np.concatenate(touched)))
    return total


@pytest.mark.parametrize(
    "kernel",
    [
        "embedding:copy_row",
        "rmsnorm:block",
        "gemv_q4_0:coalesced",
        "rope_kv:fixed",
        "attention:online_softmax",
        "swiglu:elementwise",
        "ffn_swiglu:fused",
        "add:elementwise",
        "logits:coalesced",
        "argmax:block",
        "sample:bisect",
        "advance:single_thread",
        "gemm_q4_0_batch:split_depth",
        "rope_kv_batch:pair_per_thread",
        "attention_batch:online_softmax",
        "logits_batch:shared_rows",
        "argmax_batch:block",
        "advance_batch:thread_per_sequence",
        "gemv_tiles:columns",
        "ffn_tiles:columns",
        "logits_q8_0:columns",
        "norm_qkv:fused",
        "gemv_add:fused",
        "norm_ffn:fused",
        "norm_logits:fused",
        "attention_split:mma",
        "attention_merge:block_per_head",
        "persistent:grid_barriers",
    ],
)
def test_least_bytes_are_the_distinct_bytes_that_a_kernel_touches(kernel: str) -> None:
    position = 9
    c = Config("llama", "small", 1, 64, 96, 4, 2, 32, 32, 1e4, 1e-5, 64, 70)
    which, variant = (
        op(kernel.split(":")[0]),
        op(kernel.split(":")[0]).variant(kernel.split(":")[1]),
    )
    args: Mapping[str, Any] = workload(which, c, position)
    traced = trace(
        variant.path, which.grid(variant, args), variant.threads, args, DEFINES,
        shared_bytes=variant.shared_bytes(args), cooperative=variant.cooperative,
    )  # fmt: skip
    assert least_bytes(which.name, args, position) == moved(traced, which.scratch)


def test_scores_in_memory_are_no_output_and_cost_nothing_at_least() -> None:
    c = Config("llama", "small", 1, 64, 96, 4, 2, 32, 32, 1e4, 1e-5, 64, 70)
    args = workload(op("attention"), c, 9)
    keys_and_values = 2 * 10 * 2 * 32 * 2
    assert least_bytes("attention", args, 9) == keys_and_values + 2 * 4 * 32 * 4 + 4


# ---- what it prints ----


def test_a_gpus_table_has_bandwidths_and_the_floor() -> None:
    head, *rows = made().rows()
    assert head[-2:] == ["GB/s", "of the floor"]
    by_name = {row[0]: row for row in rows}
    assert by_name["gemv_q4_0"][-2:] == ["712", "20.0%"]  # 42.7 MB in 60 us
    assert by_name["the rest"][3:5] == ["30.0", "30.0%"]
    # 42.704 MB at 4,270 GB/s take 10.0 us of the pass's 100.
    assert by_name["the whole pass"][2:] == ["4", "100.0", "100.0%", "42.704", "427", "10.0%"]
    assert all(len(row) == len(head) for row in rows)


def test_a_cpus_table_has_neither_and_says_what_its_times_are() -> None:
    text = str(made(gpu=None))
    assert "GB/s" not in text
    assert "floor" not in text
    assert "wall time of a CPU" in text


def test_a_gpu_of_unknown_bandwidth_has_no_floor() -> None:
    unknown = replace(
        made(), gpu=None, ops=tuple(replace(row, floor_share=None) for row in made().ops)
    )
    assert unknown.rows()[0][-1] == "GB/s"
    assert "loor" not in str(unknown)


def test_text_and_html_say_the_same() -> None:
    made_one = made()
    html = made_one._repr_html_()
    for cell in ("gemv_q4_0", "42.700", "the rest", "of the floor", "4,270 GB/s"):
        assert cell in html
        assert cell in str(made_one)
    assert "the time of &lt;a GPU&gt;" in html
    assert "launch has its overhead" in html
