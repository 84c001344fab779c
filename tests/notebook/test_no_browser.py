"""Where a browser is missing, a sentence says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sovereign_lab.notebook.browser import bench, chromium


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The one folder in which programs are found."""
    monkeypatch.setattr(chromium, "find_spec", lambda name: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_no_chromium_is_told(only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "apt install chromium" in (chromium.why_no_browser() or "")
    bench.main()
    assert capsys.readouterr().out.startswith("Not measured in a browser: No Chromium")


def test_a_stub_that_only_offers_to_install_is_no_browser(only: Path) -> None:
    stub = only / "chromium-browser"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    assert "does not start" in (chromium.why_no_browser() or "")
    stub.write_text("#!/bin/sh\nexit 0\n")
    assert chromium.why_no_browser() is None
    assert chromium.find_chromium() == os.fspath(stub)


def test_no_playwright_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "find_spec", lambda name: None)
    assert "pip install playwright" in (chromium.why_no_browser() or "")
