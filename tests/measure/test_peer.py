"""llama.cpp beside ours: what is asked of it, what of us, and what a run says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_cpp_stand_in import LlamaCppStandIn

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.peer import LlamaCpp, PeerRun, Point, begin, llama_cpp, points, that_fit
from sovereign_lab.measure.peer.llama_bench import differences, main
from sovereign_lab.measure.peer.run import prefill_ms
from sovereign_lab.models.model import Model, load_model

FILE = Path("model.gguf")


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model("synthetic:tiny")


def opened(api: LlamaCppStandIn, context: int = 4096, on_gpu: bool = False) -> LlamaCpp:
    return LlamaCpp(api, FILE, context, vocab=100, on_gpu=on_gpu, threads=3)


# ---- what is asked of llama.cpp ----


def test_decode_hands_over_one_token_at_a_time_and_waits_for_each() -> None:
    api = LlamaCppStandIn()
    with opened(api) as peer:
        assert peer.decode_ms(300, 3) > 0
        assert api.calls == ["decode 300", "wait", *["decode 1", "wait"] * 3]
        assert api.held == 303

        api.calls.clear()
        peer.decode_ms(300, 3)
        assert api.calls[0] == "forget from 300" and api.calls.count("decode 1") == 3
        assert "decode 300" not in api.calls and api.held == 303

        api.calls.clear()
        peer.decode_ms(400, 2)
        assert api.calls[0] == "decode 97" and api.held == 402


def test_prefill_starts_from_nothing_in_batches_of_2048_and_waits_once() -> None:
    api = LlamaCppStandIn()
    with opened(api) as peer:
        peer.prefill_ms(2500)
        peer.prefill_ms(40)
    lengths = [call for call in api.calls if call.startswith("decode")]
    assert lengths == ["decode 2048", "decode 452", "decode 40"]
    assert api.held == 40
    assert api.calls[api.calls.index("decode 2048") + 1] == "decode 452"


@pytest.mark.parametrize("on_gpu", [True, False])
def test_it_is_set_up_as_llama_bench_does(on_gpu: bool) -> None:
    api = LlamaCppStandIn()
    with opened(api, 640, on_gpu):
        pass
    assert (api.model_params.n_gpu_layers > 100) == on_gpu
    assert vars(api.context_params) == dict(
        n_ctx=640, n_batch=2048, n_ubatch=512, n_threads=3, n_threads_batch=3,
        flash_attn_type=1, offload_kqv=on_gpu, op_offload=on_gpu,
    )  # fmt: skip


def test_all_is_freed_also_where_a_batch_is_refused() -> None:
    api = LlamaCppStandIn(status=2)
    with pytest.raises(LabError, match="llama_decode returned 2"), opened(api) as peer:
        peer.decode_ms(0, 1)
    assert api.calls[-2:] == ["free context", "free model"]


def test_a_file_or_a_context_that_it_does_not_take() -> None:
    with pytest.raises(LabError, match=r"cannot load model\.gguf"):
        opened(LlamaCppStandIn(loads=False))
    api = LlamaCppStandIn(room=False)
    with pytest.raises(LabError, match="no memory for a context of 4096"):
        opened(api)
    assert api.calls == ["free model"]
    with opened(LlamaCppStandIn(), 64) as peer:
        with pytest.raises(LabError, match="position 60 on do not fit a context of 64"):
            peer.decode_ms(60, 5)
        with pytest.raises(LabError, match="65 tokens does not fit a context of 64"):
            peer.prefill_ms(65)


def test_without_it_the_way_to_install_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(LabError, match=r"sovereign-lab\[peer\].*CMAKE_ARGS=-DGGML_CUDA=on"):
        llama_cpp()

    monkeypatch.delitem(sys.modules, "llama_cpp")
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('libcublas.so.13: not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LabError, match=r"does not load: libcublas\.so\.13.*LD_LIBRARY_PATH"):
        llama_cpp()


def test_the_real_one_keeps_count_and_agrees_with_our_reference() -> None:
    """Skipped where llama-cpp-python is not installed, as in CI: there is no wheel of it."""
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    from sovereign_lab.models import reference

    api, model = llama_cpp(), load_model("storyteller")
    with LlamaCpp(api, model.path, 256, model.config.vocab, on_gpu=False, threads=1) as peer:
        for position, tokens in ((20, 3), (5, 2), (0, 1)):
            assert peer.decode_ms(position, tokens) > 0
            assert api.llama_memory_seq_pos_max(peer._memory, 0) == position + tokens - 1
        assert peer.prefill_ms(24) > 0
        assert api.llama_memory_seq_pos_max(peer._memory, 0) == 23
        row = api.llama_get_logits_ith(peer._context, -1)
        theirs = np.ctypeslib.as_array(row, (model.config.vocab,)).copy()
        ours = reference.forward(model, peer._ids[:24], np.float16)[-1]
    # llama.cpp rounds activations to 8 bits, in the CPU's products as in the GPU's.
    assert np.linalg.norm(theirs - ours) < 0.05 * np.linalg.norm(ours)


# ---- ours, and the run ----


def test_our_prefill_ends_with_logits_too(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device, "9c", context=48)
    any_device.update(engine.state.logits, np.full(tiny.config.vocab, np.nan, np.float32))
    # What the head reads is nothing that blocks write.
    any_device.update(engine.state.x, np.ones(tiny.config.dim, np.float32))
    assert prefill_ms(engine, list(range(41))) > 0
    assert np.isfinite(any_device.to_host(engine.state.logits)).all()
    assert any_device.to_host(engine.state.position)[0] == 40


def test_every_phase_meets_it_at_every_length(simt: SimtDevice, tiny: Model) -> None:
    api = LlamaCppStandIn()
    run = begin(tiny, simt, api, decoded=2)
    found = list(points(run, tiny, simt, api, ["8c", "9c"], [3], [20], rounds=5))
    assert [(p.phase, p.what, p.tokens) for p in found] == [
        (phase, *test) for phase in ("8c", "9c") for test in (("decode", 3), ("prefill", 20))
    ]
    assert api.context_params.n_ctx == 21
    assert api.context_params.n_threads == run.peer_threads == simt.workers
    for point in found:
        c = point.comparison
        assert (c.base, c.change) == ("llama.cpp", f"phase {point.phase}")
        assert len(c.base_ms) == len(c.change_ms) == 5 and min(*c.base_ms, *c.change_ms) > 0
        assert point.tokens_per_second == pytest.approx(
            (1e3 / np.median(c.base_ms), 1e3 / np.median(c.change_ms))
        )
    assert api.calls[-1] == "free model"


def test_nothing_to_measure_is_refused(simt: SimtDevice, tiny: Model) -> None:
    api = LlamaCppStandIn()
    run = begin(tiny, simt, api, decoded=2)
    for phases, contexts, rounds in (([], [3], 5), (["9c"], [], 5), (["9c"], [3], 4)):
        with pytest.raises(LabError, match="needs a phase, a context or a prompt"):
            next(points(run, tiny, simt, api, phases, contexts, [], rounds))
    with pytest.raises(LabError, match="context of 1 to 8192 positions; 9002"):
        next(points(run, tiny, simt, api, ["9c"], [9000], [], 5))


def test_lengths_that_the_models_context_has_room_for(tiny: Model) -> None:
    assert that_fit(tiny.config, 3, [8189, 8190], [8191, 8192]) == ([8189], [8191])


def test_a_run_is_kept_and_says_what_each_side_reads(
    simt: SimtDevice, tiny: Model, tmp_path: Path
) -> None:
    times = Comparison("llama.cpp", "phase 9c", "d", (2.0,) * 5, (1.0,) * 5, 2.0, 1.9, 2.1)
    run = begin(tiny, simt, LlamaCppStandIn(), decoded=8, threads=1)
    run = run.with_point(Point("decode", 512, "9c", times))
    run.write(tmp_path / "run.json")
    assert PeerRun.read(tmp_path / "run.json") == run

    assert run.file_bytes == tiny.path.stat().st_size
    assert (run.head_type, run.head_bytes) == (tiny.head.type.name, tiny.head.nbytes)
    assert run.our_head_bytes == 512 * 128 * 4
    text = str(run)
    assert "head float32" in text and f"head {run.head_type} as in the file" in text
    assert "0.0-stand-in on the CPU, 1 thread: its build has no CUDA" in text
    assert "imitates a GPU" in text
    row = text.splitlines()[-1].split()
    assert row == ["decode", "512", "9c", "500.0", "1,000.0", "2.000", "1.900", "to", "2.100"]


def test_it_goes_to_the_gpu_beside_ours_if_it_can(any_device: Device, tiny: Model) -> None:
    where = "the GPU" if any_device.properties.kind == "cuda" else "the CPU"
    run = begin(tiny, any_device, LlamaCppStandIn(gpu=True), decoded=8)
    assert run.peer_on == where and run.peer_built_for_gpu
    assert f"on {where}" in run.heading and "no CUDA" not in run.heading
    without = begin(tiny, any_device, LlamaCppStandIn(), decoded=8)
    assert without.peer_on == "the CPU" and "its build has no CUDA" in without.heading


# ---- against llama-bench ----


def bench_line(prompt: int, generated: int, depth: int, *rates: float) -> str:
    return json.dumps(dict(n_prompt=prompt, n_gen=generated, n_depth=depth, samples_ts=list(rates)))


def kept(path: Path, simt: SimtDevice, model: Model) -> Path:
    """A run: 1,000 tok/s of llama.cpp's in decode at 16 and in a prompt of 128."""
    times = Comparison("llama.cpp", "phase 9c", "d", (1.0,) * 5, (1.0,) * 5, 1.0, 1.0, 1.0)
    run = begin(model, simt, LlamaCppStandIn(), decoded=8)
    for point in (Point("decode", 16, "9c", times), Point("prefill", 128, "9c", times)):
        run = run.with_point(point)
    run.write(path)
    return path


def test_differences_are_of_the_same_tests(simt: SimtDevice, tiny: Model, tmp_path: Path) -> None:
    run = PeerRun.read(kept(tmp_path / "run.json", simt, tiny))
    lines = [
        bench_line(0, 8, 16, 800, 1010, 1030),
        bench_line(0, 8, 16, 1005, 1020),
        bench_line(0, 9, 16, 5),
        bench_line(0, 8, 32, 5),
        bench_line(128, 0, 0, 500),
        bench_line(128, 0, 16, 5),
        bench_line(128, 8, 0, 5),
    ]
    decode, prefill = differences(run, "\n".join(lines) + "\n")
    assert (decode.what, decode.tokens, decode.loop, decode.bench) == ("decode", 16, 1000, 1010)
    assert not decode.too_far and "-1.0%" in str(decode)
    assert prefill.share == 1.0 and not prefill.too_far


@pytest.mark.parametrize(("rate", "status"), [(1019, 0), (1025, 1), (975, 1)])
def test_more_than_two_percent_of_decode_is_an_error(
    rate: float,
    status: int,
    simt: SimtDevice,
    tiny: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = kept(tmp_path / "run.json", simt, tiny)
    (tmp_path / "bench.jsonl").write_text(bench_line(0, 8, 16, rate))
    monkeypatch.setattr(sys, "argv", ["llama_bench", str(run), str(tmp_path / "bench.jsonl")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    assert ("more than 2 %" in capsys.readouterr().out) == bool(status)


def test_nothing_in_common_is_an_error(
    simt: SimtDevice, tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = kept(tmp_path / "run.json", simt, tiny)
    (tmp_path / "bench.jsonl").write_text(bench_line(0, 64, 16, 1000))
    monkeypatch.setattr(sys, "argv", ["llama_bench", str(run), str(tmp_path / "bench.jsonl")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
