"""`sovereign-lab inspect` shows any GGUF file, also one that the lab cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_document
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

from sovereign_lab import cli


def bert(path: Path) -> Path:
    """A file of another architecture, with what a terminal and JSON choke on."""
    document = gguf_document.Document(
        values=[
            gguf_document.text("general.architecture", "bert"),
            gguf_document.text("general.name", "a \x1b[31mname\n"),
            gguf_document.number("bert.epsilon", float("nan")),
            gguf_document.array("tokens", [f"[{n}]" for n in range(100)], Kind.STRING),
            gguf_document.array("few", [float("inf"), 1.0], Kind.FLOAT32),
        ],
        tensors=[
            gguf_document.matrix("encoder.0.weight", Type.Q5_0, 3, 64),
            gguf_document.matrix("encoder.0.bias", Type.F16, 1, 7),
        ],
    )
    path.write_bytes(gguf_document.write(document)[0])
    return path


def test_another_architecture_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(bert(tmp_path / "bert.gguf"))]) == 0
    out = capsys.readouterr().out
    for word in ("encoder.0.weight", "Q5_0", "3 x 64", "bert.epsilon", "string[100]"):
        assert word in out
    assert "Not run here:" in out and "only 'llama' is computed here" in out
    assert "\x1b" not in out


def test_another_architecture_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--json", str(bert(tmp_path / "bert.gguf"))]) == 0

    def no_such_number(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    record = json.loads(capsys.readouterr().out, parse_constant=no_such_number)
    assert record["architecture"] == "bert" and record["config"] is None
    assert "only 'llama' is computed here" in record["why_not_run"]
    assert record["floors"] == [] and record["token_bytes"] == {}
    assert record["metadata"]["tokens"] == "100 values"
    assert record["metadata"]["few"] == ["inf", 1.0]
    assert [tensor["shape"] for tensor in record["tensors"]] == [[3, 64], [7]]


def test_a_file_of_nothing_but_a_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = gguf_document.llama(gguf_document.sentencepiece_vocabulary(), 283)
    document.tensors.clear()
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(gguf_document.write(document)[0])
    assert cli.main(["inspect", str(path)]) == 0
    assert "there is no tensor 'token_embd.weight'" in capsys.readouterr().out
