"""`sovereign-lab bench peer`: a table on stdout, a file on request, and what to do where llama.cpp is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from llama_cpp_stand_in import LlamaCppStandIn

from sovereign_lab import cli
from sovereign_lab.measure.peer import PeerRun

TINY = ["bench", "peer", "--model", "synthetic:tiny", "--device", "simt", "--rounds", "5"]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> LlamaCppStandIn:
    stand_in = LlamaCppStandIn()
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    return stand_in


def test_table_and_file_are_the_same_run(
    api: LlamaCppStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run.json"
    asked = ["--phase", "8c", "--phase", "9c", "--phase", "8c", "--context", "2", "--context", "5"]
    assert cli.main([*TINY, *asked, "--prompt", "9", "--tokens", "2", "--json", str(place)]) == 0
    run = PeerRun.read(place)
    assert [(p.phase, p.what, p.tokens) for p in run.points] == [
        (phase, *test)
        for phase in ("8c", "9c")
        for test in (("decode", 2), ("decode", 5), ("prefill", 9))
    ]
    assert run.decoded == 2
    assert capsys.readouterr().out == f"{run}\n"


def test_the_simt_device_has_one_length_of_each_by_default(
    api: LlamaCppStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*TINY, "--tokens", "1"]) == 0
    *_, decode, prefill = capsys.readouterr().out.splitlines()
    assert decode.split()[:3] == ["decode", "16", "9c"]
    assert prefill.split()[:3] == ["prefill", "128", "9c"]


def test_a_context_alone_leaves_prompts_out(
    api: LlamaCppStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*TINY, "--tokens", "1", "--context", "0", "--threads", "7"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split()[:2] == ["decode", "0"]
    assert not any(call.startswith("decode 128") for call in api.calls)
    assert api.context_params.n_threads == 7


def test_where_it_is_missing_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert cli.main(TINY) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: llama.cpp is not installed here.")
    assert "pip install 'sovereign-lab[peer]'" in err


def test_a_length_that_the_model_has_no_room_for(
    api: LlamaCppStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*TINY, "--context", "8190"]) == 1
    assert "context of 1 to 8192 positions; 8202 was asked for" in capsys.readouterr().err


def test_help_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are markup to Rich: [peer] was left out."""
    assert cli.main(["bench", "peer", "--help"]) == 0
    assert "the extra `peer` installs" in " ".join(capsys.readouterr().out.split())
