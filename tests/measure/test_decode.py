"""Decode in one run: what is measured, checked, kept and said; no test asserts a time."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp_stand_in import LlamaCppStandIn

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.op import Variant
from sovereign_lab.measure.decode import (
    LLAMA_CPP,
    DecodeRun,
    Difference,
    Peer,
    Stages,
    TextCheck,
    Times,
    run,
    stages,
    texts,
)
from sovereign_lab.measure.decode.__main__ import environment_with, main
from sovereign_lab.measure.decode.facts import NO_GRAPHS
from sovereign_lab.measure.decode.turns import built, head_bytes, times
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.tiles import Q4_0_PAIR, Q8_0_PAIR

TINY = "synthetic:tiny"


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model(TINY)


def made() -> DecodeRun:
    measured = [
        Times("8b", 128, (10.0, 11.0, 12.0)),
        Times("8b", 2048, (30.0, 31.0, 50.0)),
        Times("10", 128, (5.0, 11.0, 4.0)),
        Times(LLAMA_CPP, 128, (7.0, 7.0, 7.0)),
    ]
    off = Difference(at=3, token_8b=7, token=9, margin=0.02, allowed=0.05)
    check = TextCheck("storyteller", "10", "Once", 64, 1e-3, 1e-4, 2e-3, 3, off)
    us = {"a": (1.0, 3.0), "b": (2.0, 2.0)}
    stage = Stages("13c", 128, 16, 5, 132, 2000.0, 7, us, 0.5, 4.0, 1.0, 13.0)
    return DecodeRun(
        {"device": "NVIDIA H200", "date": "2026-12-01"}, "GPU time", "m", 33, 1000, 10,
        {"8b": 400, "10": 100, LLAMA_CPP: 90}, tuple(measured), {"13c": "needs sm_90"},
        Peer("0.1", "build", "the GPU", "Q6_K", 90), None, (check,), (stage,), None,
    )  # fmt: skip


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    made().write(tmp_path / "run.json")
    assert DecodeRun.read(tmp_path / "run.json") == made()
    bare = dataclasses.replace(made(), peer=None, texts=(), stages=(), stages_reason="no kernel")
    bare.write(tmp_path / "bare.json")
    assert DecodeRun.read(tmp_path / "bare.json") == bare


def test_figures_are_medians_over_rounds() -> None:
    r = made()
    assert (r.names, r.contexts) == (["8b", "10", LLAMA_CPP], [128, 2048])
    assert r.us("8b", 128) == 11
    assert r.find("10", 2048) is None
    with pytest.raises(KeyError, match="10 at context 2048"):
        r.us("10", 2048)
    # Round by round, and not one median over the other: 2, 1 and 3 times as fast.
    assert r.gain("10", "8b", 128) == 2
    assert r.added("8b", 2048) == 20 and r.added("8b", 128) == 0 and r.added("10", 2048) is None
    assert Times("8b", 1, (1.0, 2.0, 3.0)).low == pytest.approx(1.1)
    assert Times("8b", 1, (1.0, 2.0, 3.0)).high == pytest.approx(2.9)


def test_the_floor_counts_the_head_that_is_read_and_the_middle_of_the_tokens() -> None:
    r = made()
    assert r.nbytes("8b", 128) == 1000 + 400 + (128 + 16) * 10
    assert r.nbytes("10", 128) == r.nbytes("8b", 128) - 300
    us = r.floor_us("8b", 128)
    assert us == pytest.approx(r.nbytes("8b", 128) / 4270e9 * 1e6)
    elsewhere = dataclasses.replace(r, environment={"device": "SIMT device"})
    assert elsewhere.floor_us("8b", 128) is None


def test_it_says_what_did_not_run_and_what_differs() -> None:
    text = " ".join(str(made()).split())
    for said in (
        "phase 8b 11.0 (10.1 to 11.9) 31.0",
        "+20.0",
        "phase 13c did not run: needs sm_90",
        "llama-cpp-python 0.1 on the GPU; head Q6_K",
        "3 of 64 greedy tokens are 8b's; then 9 for 7, which the reference puts 0.02 above: a near tie",
        "a layer 4.0 us, start 0.5, head 4.0, best token 1.0, all 13.5 us",
    ):
        assert said in text, text
    odd = Difference(at=3, token_8b=7, token=9, margin=0.06, allowed=0.05)
    check = dataclasses.replace(made().texts[0], difference=odd)
    assert not check.ok and made().texts[0].ok
    without = dataclasses.replace(
        made(), texts=(check,), peer=None, peer_reason="none given", stages=(), stages_reason="why"
    )
    assert "NO near tie" in str(without)
    assert "llama.cpp did not run: none given" in str(without) and "no stages: why" in str(without)


# ---- measuring ----


def test_phases_and_llama_cpp_take_turns_over_the_same_tokens(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    engines, refused = built(tiny, simt, ("8b", "8c"), 64)
    assert refused == {}

    def note(name: str, us: float) -> float:
        turns.append(name)
        return us

    class PeerStandIn:
        def decode_ms(self, position: int, tokens: int) -> float:
            assert (position, tokens) == (16, 3)
            return note(LLAMA_CPP, 1.0)

    def decode_us(engine: Engine, position: int, tokens: int) -> float:
        assert (position, tokens) == (16, 3)
        return note(engine.phase.id, float(len(turns)))

    monkeypatch.setattr("sovereign_lab.measure.decode.turns.decode_us", decode_us)
    found = list(times(engines, PeerStandIn(), [16], 3, 2))  # type: ignore[arg-type]
    assert turns == ["8b", "8c", LLAMA_CPP, "8c", LLAMA_CPP, "8b", LLAMA_CPP, "8b", "8c"]
    assert [(t.name, t.us) for t in found] == [
        ("8b", (5.0, 7.0)), ("8c", (3.0, 8.0)), (LLAMA_CPP, (1000.0, 1000.0)),
    ]  # fmt: skip


def test_a_phase_that_the_gpu_does_not_have_is_recorded_with_its_reason(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Engine, variants: dict[str, Variant]) -> None:
        if self.phase.id == "8c":
            raise LabError("needs sm_90")

    monkeypatch.setattr(Engine, "check_arch", refuse)
    engines, refused = built(tiny, simt, ("8b", "8c", "9b"), 64)
    assert list(engines) == ["8b", "9b"] and refused == {"8c": "needs sm_90"}
    assert engines["9b"].weights is engines["8b"].weights
    with pytest.raises(LabError, match=r"None of the phases 8c runs here.*sm_90"):
        built(tiny, simt, ("8c",), 64)


def test_a_run_has_every_phase_texts_and_stages(
    simt: SimtDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "REPEATS", 1)
    phases = ("8b", "11", "13c")
    kept: list[DecodeRun] = []
    r = run(
        simt, TINY, phases, contexts=(5, 8191), tokens=2, rounds=1, text_models=[TINY], text_tokens=17,
        api=LlamaCppStandIn(), keep=kept.append,
    )  # fmt: skip
    assert [(len(k.texts), len(k.stages)) for k in kept] == [(0, 0), (3, 0)]
    assert r.names == ["8b", "11", "11" + NO_GRAPHS, "13c", LLAMA_CPP]
    assert r.contexts == [5]  # the other one has no room
    assert all(t.median > 0 for t in r.times)
    assert r.peer is not None and r.peer.on == "the CPU"
    assert (
        r.heads["8b"] == 512 * 128 * 4 and r.heads["11"] == r.heads["13c"] == 512 * 128 // 32 * 34
    )
    assert [t.name for t in r.texts] == list(phases)
    assert all(t.ok for t in r.texts), str(r)
    assert r.texts[0].same == 17 and r.texts[0].to_8b == 0 and r.texts[0].to_reference < 1e-4
    assert 0 < r.texts[-1].to_reference < 0.05
    assert r.texts[0].to_rounded == r.texts[0].to_reference  # nothing is rounded there
    assert 0 < r.texts[-1].to_rounded < 0.05
    assert r.stages_reason is None and len({stage.block for stage in r.stages}) == 2
    for stage in r.stages:
        assert (stage.name, stage.context, stage.tokens) == ("13c", 5, 2)
        assert len(stage.us) == 17 and {len(us) for us in stage.us.values()} == {2}
    r.write(tmp_path / "run.json")
    assert DecodeRun.read(tmp_path / "run.json") == r


def test_early_phases_take_no_turn_at_long_contexts(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, _ = built(tiny, simt, ("7", "8b"), 64)
    monkeypatch.setattr("sovereign_lab.measure.decode.turns.decode_us", lambda *a: 1.0)
    found = [(t.name, t.context) for t in times(engines, None, [256, 257], 1, 1)]
    assert found == [("7", 256), ("8b", 256), ("8b", 257)]


def test_nothing_to_measure_is_refused(simt: SimtDevice) -> None:
    with pytest.raises(LabError, match=r"There is nothing to measure: .* context of 8192"):
        run(simt, TINY, contexts=(9000,))


def test_the_head_is_float32_before_phase_10(simt: SimtDevice, tiny: Model) -> None:
    assert head_bytes(Engine(tiny, simt, "9b", context=16)) == 512 * 128 * 4


# ---- texts ----


def test_a_first_difference_is_judged_by_the_reference(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, _ = built(tiny, simt, ("8b", "8c"), 64)
    real = texts.greedy

    def other(engine: Engine, ids: list[int], tokens: int) -> list[int]:
        found = real(engine, ids, tokens)
        if engine.phase.id == "8c":
            found[2] = (found[2] + 1) % engine.model.config.vocab
        return found

    monkeypatch.setattr(texts, "greedy", other)
    first, changed = texts.checks(engines, "Once", 4)
    assert first.difference is None and first.same == 4
    assert changed.same == 2 and changed.difference is not None
    assert changed.difference.token == changed.difference.token_8b + 1
    assert changed.difference.margin > changed.difference.allowed > 0
    assert not changed.ok


def test_a_phase_that_is_wrong_is_no_judge_of_its_own_text(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are all off by as much as they are large would else explain any difference."""
    engines, _ = built(tiny, simt, ("8b", "8c"), 64)
    real = Engine.logits

    def negated(engine: Engine, ids: list[int]) -> np.ndarray:
        return real(engine, ids) * (-1 if engine.phase.id == "8c" else 1)

    monkeypatch.setattr(Engine, "logits", negated)
    monkeypatch.setattr(texts, "greedy", lambda e, ids, n: [1 + (e.phase.id == "8c")] * n)
    _, wrong = texts.checks(engines, "Once", 4)
    assert wrong.to_reference > 1
    assert wrong.difference is not None and not wrong.ok


# ---- stages ----


def test_rounds_of_a_product_are_the_kernels(repository: Path) -> None:
    header = (repository / "sovereign_lab/kernels/include/tiles.cuh").read_text()
    assert f"#define MOST_TILES {stages.MOST_TILES}\n" in header
    ring = 190_000
    # TinyLlama's on 132 SMs: each product of a layer at once, 60 tiles of the head in eight rounds.
    for rows, cols in ((2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)):
        assert stages.rounds(rows, cols, Q4_0_PAIR, ring, 5, 132) == 1
    tiles = 8000 * 6 // 132 - 8000 * 5 // 132
    at_once = ring // 8 * 3 // (32 * 272) // 4 * 4
    assert stages.rounds(32000, 2048, Q8_0_PAIR, ring, 5, 132) == -(-tiles // at_once)
    assert stages.rounds(4, 64, Q4_0_PAIR, ring, 5, 132) == 1  # none of it: a barrier still


def test_a_kernel_with_other_stages_is_told(
    simt: SimtDevice, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabError, match="8b has no kernel that keeps stamps"):
        stages.stages(Engine(tiny, simt, "8b", context=64), 5)
    monkeypatch.setattr(stages, "REPEATS", 1)
    real = stages._names
    monkeypatch.setattr(stages, "_names", lambda *a: [*real(*a), (0, "one more")])
    engine = Engine(tiny, simt, "13c", context=64)
    plain = engine.kernels["persistent"]
    with pytest.raises(LabError, match="its stages have changed"):
        stages.stages(engine, 5, tokens=2)
    assert engine.kernels["persistent"] is plain


# ---- the command line ----


def test_the_folder_of_llama_cpp_comes_first_on_every_path(tmp_path: Path) -> None:
    found = environment_with(tmp_path, {"PYTHONPATH": "mine", "HOME": "h"})
    assert found["LLAMA_CPP_LIB_PATH"] == str(tmp_path) and found["HOME"] == "h"
    assert found["PYTHONPATH"] == f"{tmp_path}{os.pathsep}mine"
    assert found["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(tmp_path)


def test_the_entry_starts_itself_again_with_these_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StartedAgainError(Exception):
        pass

    def started(file: str, arguments: list[str], environment: dict[str, Any]) -> None:
        assert arguments[1:3] == ["-m", "sovereign_lab.measure.decode"]
        assert arguments[3:] == ["--peer", str(tmp_path), "--device", "simt"]
        assert environment["LLAMA_CPP_LIB_PATH"] == str(tmp_path)
        raise StartedAgainError

    monkeypatch.setattr(os, "execve", started)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    with pytest.raises(StartedAgainError):
        main(["--peer", str(tmp_path), "--device", "simt"])


def test_the_entry_measures_prints_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "new" / "run.json"
    main(
        f"--device simt --model {TINY} --phase 8b --phase 8c --context 3 --tokens 1 --rounds 1 --text-model {TINY} "
        f"--text-tokens 2 --record {kept}".split()
    )
    said = capsys.readouterr().out
    assert "phase 8c" in said and "llama.cpp did not run: no build of it was given" in said
    assert "no stages: Phase 8c has no kernel that keeps stamps" in said
    r = DecodeRun.read(kept)
    assert r.names == ["8b", "8c"] and np.isfinite(r.us("8c", 3))
