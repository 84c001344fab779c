"""What the wheel carries of the workbench's page is what its sources give, with the licences of what is inside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path("sovereign_lab/notebook/workbench")
FILES = ("workbench.js", "workbench.css", "LICENSES.txt")
NO_REGISTRY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")


def test_the_lock_file_names_every_version_and_no_host(repository: Path) -> None:
    text = (repository / FOLDER / "js" / "package-lock.json").read_text()
    assert "://" not in text
    assert '"resolved"' not in text
    packages = json.loads(text)["packages"]
    wanted = json.loads((repository / FOLDER / "js" / "package.json").read_text())
    for name, version in wanted["devDependencies"].items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in found for name, found in packages.items() if name)


def test_every_licence_is_kept(repository: Path) -> None:
    text = (repository / FOLDER / "static" / "LICENSES.txt").read_text()
    packages = json.loads((repository / FOLDER / "js" / "package-lock.json").read_text())[
        "packages"
    ]
    for name in ("@codemirror/view", "@codemirror/lang-cpp", "@lezer/cpp", "style-mod"):
        version = packages[f"node_modules/{name}"]["version"]
        assert f"{name} {version} (MIT)" in text
    assert text.count("Permission is hereby granted") == len(
        re.findall(r"^\S+ \S+ \(MIT\)$", text, re.M)
    )


def test_a_build_gives_the_same_bytes(repository: Path, tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    copy = tmp_path / "js"
    shutil.copytree(repository / FOLDER / "js", copy, ignore=shutil.ignore_patterns("node_modules"))
    ci = ["npm", "ci", "--ignore-scripts", "--prefer-offline", "--fetch-retries=0"]
    done = subprocess.run(ci, cwd=copy, capture_output=True, text=True)
    if done.returncode and any(code in done.stderr for code in NO_REGISTRY):
        pytest.skip(f"npm reaches no registry: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    subprocess.run(["node", "build.mjs", str(tmp_path / "static")], cwd=copy, check=True)
    for name in FILES:
        built = (tmp_path / "static" / name).read_bytes()
        stale = "is not what js/ gives: run `make widgets`"
        assert built == (repository / FOLDER / "static" / name).read_bytes(), f"{name} {stale}"
