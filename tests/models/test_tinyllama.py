"""TinyLlama comes through huggingface_hub: tried against a stand-in for the hub."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in import Server

from sovereign_lab.errors import LabError
from sovereign_lab.models import tinyllama

REMOTE = f"/{tinyllama.REPOSITORY}/resolve/main/{tinyllama.FILE}"

SCRIPT = """
import sys
from sovereign_lab.errors import LabError
from sovereign_lab.models import catalog
entry = [entry for entry in catalog.entries() if entry.name == "tinyllama-1.1b"][0]
print(entry.present)
try:
    print(catalog.resolve("tinyllama-1.1b", progress="--progress" in sys.argv))
except LabError as error:
    print("LabError:", error)
"""


@pytest.fixture
def hub(server: Server, tiny: Path) -> Server:
    pytest.importorskip("huggingface_hub")
    content = tiny.read_bytes()
    server.files[REMOTE] = content
    server.headers[REMOTE] = {
        "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
        "X-Repo-Commit": "52e7645ba7c309695bec7ac98f4f005b139cf465",
    }
    return server


def resolve(
    hub: Server, home: Path, *arguments: str, **more: str
) -> "subprocess.CompletedProcess[str]":
    """resolve("tinyllama-1.1b") in a fresh process, since the library reads its settings once."""
    unset = {"HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_DISABLE_PROGRESS_BARS"}
    settings = {name: value for name, value in os.environ.items() if name not in unset}
    settings |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)} | more
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)


def test_the_file_is_downloaded_once(hub: Server, tiny: Path, tmp_path: Path) -> None:
    first = resolve(hub, tmp_path)
    present, path = first.stdout.splitlines()
    assert present == "False" and Path(path).name == tinyllama.FILE
    assert Path(path).read_bytes() == tiny.read_bytes()
    assert "%" not in first.stderr, "a bar was drawn where no progress was asked for"
    hub.requests.clear()
    assert resolve(hub, tmp_path).stdout.splitlines() == ["True", path]
    assert not hub.requests, "a file in the cache was asked for again"


def test_progress_is_shown_where_asked_for(hub: Server, tmp_path: Path) -> None:
    assert "%" in resolve(hub, tmp_path, "--progress").stderr


def test_a_hub_without_the_file(hub: Server, tmp_path: Path) -> None:
    del hub.files[REMOTE]
    hub.headers[REMOTE] = {"X-Error-Code": "EntryNotFound"}
    sentence = resolve(hub, tmp_path).stdout.splitlines()[1]
    assert sentence.startswith(f"LabError: {tinyllama.FILE} could not be downloaded from Hugging")
    assert "404" in sentence


@pytest.mark.slow  # the library tries again and again
def test_no_network(hub: Server, tmp_path: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    sentence = resolve(hub, tmp_path).stdout.splitlines()[1]
    assert "could not be downloaded" in sentence and "HF_ENDPOINT" in sentence


def test_offline_mode(hub: Server, tmp_path: Path) -> None:
    sentence = resolve(hub, tmp_path, HF_HUB_OFFLINE="1").stdout.splitlines()[1]
    assert "could not be downloaded" in sentence and not hub.requests


def test_what_is_downloaded_is_checked(hub: Server, tmp_path: Path) -> None:
    hub.files[REMOTE] = b"<html>sign in</html>"
    assert "is not a GGUF file: it starts with b'<htm'" in resolve(hub, tmp_path).stdout


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert tinyllama.present() is None
    with pytest.raises(LabError, match=r"pip install 'sovereign-lab\[hub\]'"):
        tinyllama.make()
