"""The command line: what goes to stdout, what to stderr, and errors in a sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sovereign_lab import cli
from sovereign_lab.errors import LabError

TINY = "synthetic:tiny"


@pytest.fixture(scope="module")
def tiny() -> Path:
    from sovereign_lab.models.catalog import resolve

    return resolve(TINY)


def one_json_object(stdout: str) -> dict[str, Any]:
    assert stdout.count("\n") == 1, "one object on one line"
    loaded = json.loads(stdout)
    assert isinstance(loaded, dict)
    return loaded


def generate(*options: str) -> list[str]:
    """Arguments for a short generation by the smallest model on the SIMT device."""
    command = ["run", "abc", "--model", TINY, "--device", "simt", "--max-tokens", "3"]
    return [*command, *options]


def test_run_json_is_one_object_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(generate("--json")) == 0
    record = one_json_object(capsys.readouterr().out)
    assert set(record) == {
        "text",
        "token_ids",
        "tokens_per_second",
        "prefill_tokens_per_second",
        "ms_per_forward",
        "device",
        "phase",
        "model",
        "agreement",
        "finish_reason",
        "stop",
    }
    assert 1 <= len(record["token_ids"]) <= 3
    assert record["device"].startswith("simt")
    assert record["phase"] == "8b"
    assert record["model"] == "synthetic-tiny"
    assert record["finish_reason"] in {"stop", "length"}
    assert record["ms_per_forward"] > 0
    assert 0.0 <= record["agreement"] <= 1.0


def test_run_streams_the_text_alone_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(generate("--json", "--no-check")) == 0
    record = one_json_object(capsys.readouterr().out)
    assert record["agreement"] is None
    assert cli.main(generate()) == 0
    out, err = capsys.readouterr()
    assert out == record["text"] + "\n"
    told = " ".join(err.split())
    for words in ("tokens/s", "ms", "a CPU that imitates a GPU", "of the NumPy reference"):
        assert words in told


def test_temperature_is_seeded(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        options = ["--json", "--no-check", "--temperature", "5", "--seed", seed]
        assert cli.main(generate(*options)) == 0
        texts.append(one_json_object(capsys.readouterr().out)["token_ids"])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_choices_of_sampling_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    def token_ids(*options: str) -> list[int]:
        assert cli.main(generate("--json", "--no-check", *options)) == 0
        return one_json_object(capsys.readouterr().out)["token_ids"]

    greedy = token_ids()
    hot = ("--temperature", "5", "--seed", "1")
    assert token_ids(*hot) != greedy
    for only_the_likeliest in (("--top-k", "1"), ("--top-p", "0"), ("--min-p", "1")):
        assert token_ids(*hot, *only_the_likeliest) == greedy
    assert greedy[0] not in token_ids("--repeat-penalty", "1e9")[1:]
    assert_one_sentence(generate("--top-p", "1.5"), capsys, "top_p is a probability from 0 to 1")


def test_stop_string_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(generate("--json", "--no-check")) == 0
    text = one_json_object(capsys.readouterr().out)["text"]
    stop = text[1:3]
    options = ["--json", "--no-check", "--stop", "never there", "--stop", stop]
    assert cli.main(generate(*options)) == 0
    record = one_json_object(capsys.readouterr().out)
    assert record["text"] == text[: text.index(stop)]
    assert (record["finish_reason"], record["stop"]) == ("stop", stop)
    assert cli.main(generate("--no-check", "--stop", stop)) == 0
    assert f"the stop string {stop!r} came up" in " ".join(capsys.readouterr().err.split())


def test_chat_with_a_model_that_has_no_template_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert_one_sentence(generate("--chat"), capsys, "no chat template", "plain prompt")


def test_chat_puts_the_prompt_into_the_model_s_template(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    import sovereign_lab as sl

    model = sl.load_model(TINY)
    template = "{{ messages[0].role }}: {{ messages[0].content }}!"
    tokenizer = dataclasses.replace(model.tokenizer, chat_template=template)
    chatting = dataclasses.replace(model, tokenizer=tokenizer)
    monkeypatch.setattr(sl, "load_model", lambda name, progress: chatting, raising=False)
    assert cli.main(generate("--json", "--no-check", "--chat")) == 0
    chat = one_json_object(capsys.readouterr().out)["token_ids"]
    plain = ["run", "user: abc!", "--model", TINY, "--device", "simt", "--max-tokens", "3"]
    assert cli.main([*plain, "--json", "--no-check"]) == 0
    assert chat == one_json_object(capsys.readouterr().out)["token_ids"]


def test_unknown_phase_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_sentence(generate("--phase", "99"), capsys, "99")


def test_cuda_without_a_gpu_is_one_sentence(
    no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_sentence(["run", "--device", "cuda", "--model", TINY], capsys, "GPU")


def assert_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str], *words: str
) -> None:
    """The command fails, with nothing on stdout and one line on stderr that has all `words`."""
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in errors[0]


def test_inspect_shows_tensors_config_bytes_and_floors(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(tiny)]) == 0
    out = capsys.readouterr().out
    for word in ("blk.N.attn_q.weight", "Q4_0", "kv_heads", "Bytes a token", "H200", "modelled"):
        assert word in out


def test_inspect_json_counts_what_the_file_holds(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(tiny), "--json"]) == 0
    record = one_json_object(capsys.readouterr().out)
    assert record["bytes"] == tiny.stat().st_size
    blocks = [t for t in record["tensors"] if t["type"] == "Q4_0" and t["name"].startswith("blk")]
    assert record["token_bytes"]["F32"]["layers"] == sum(t["bytes"] for t in blocks)
    (head,) = (t for t in record["tensors"] if t["name"] == "output.weight")
    assert record["token_bytes"][head["type"]]["head"] == head["bytes"]
    fastest = min(record["floors"], key=lambda floor: floor["ms"])
    assert fastest["gpu"] == "H200" and fastest["head"] == "Q8_0"


def test_inspect_refuses_a_file_that_is_not_gguf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("shopping list")
    assert_one_sentence(["inspect", str(path)], capsys, str(path), "GGUF")


def test_inspect_refuses_a_file_cut_short(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:-1000])
    assert_one_sentence(["inspect", str(path)], capsys, str(path), "cut short")


def test_models_list_names_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "list"]) == 0
    out = capsys.readouterr().out
    assert "smollm2-135m" in out
    assert "(default)" in out


@pytest.mark.parametrize("name", ["tiny", "synthetic:tiny"])
def test_models_synth_prints_the_path(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["models", "synth", name]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes()[:4] == b"GGUF"


def test_models_pull_of_an_unknown_name_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert_one_sentence(["models", "pull", "gpt-17"], capsys, "gpt-17", "smollm2-135m")


def failing_pull(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Arguments of a command in the middle of which `error` is raised."""
    from sovereign_lab.models import catalog

    def resolve(name: str, progress: bool = False) -> Path:
        raise error

    monkeypatch.setattr(catalog, "resolve", resolve)
    return ["models", "pull", "smollm2-135m"]


def test_full_disk_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.gguf")
    arguments = failing_pull(monkeypatch, error)
    assert_one_sentence(arguments, capsys, "disk is full", "model.gguf", "XDG_CACHE_HOME")


def test_interrupt_ends_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(failing_pull(monkeypatch, KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = failing_pull(monkeypatch, LabError("a sentence"))
    with pytest.raises(LabError, match="a sentence"):
        cli.main(["--debug", *arguments])


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--max-tokens", "0"]) == 2
    assert cli.main(["run", "--device", "tpu"]) == 2
    assert "simt" in capsys.readouterr().err


def test_help_needs_none_of_the_rooms() -> None:
    """Help stays instant: NumPy is the first thing that any room imports."""
    code = "import sys; from sovereign_lab.cli import main; main(['run', '--help'])"
    code += "; sys.exit('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, "a room was imported for --help"
    assert "--max-tokens" in shown.stdout


def test_python_dash_m_runs_the_command(tiny: Path) -> None:
    command = [sys.executable, "-m", "sovereign_lab", "inspect", str(tiny.parent / "absent.gguf")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
