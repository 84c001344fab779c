"""The files that describe the environment agree, and set-up chooses what fits the machine."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sovereign_lab import provision

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What stands in conda-forge for a wheel of ours; for ziglang, something of the same purpose.
CONDA_NAMES = {
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "nvidia-cuda-cccl": "cuda-cccl",
    "nvidia-cuda-crt": "cuda-cudart-dev",
    "nvidia-cuda-nvdisasm": "cuda-nvdisasm",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart-dev",
    "ziglang": "cxx-compiler",
}
# Of these the version is not the wheel's: another compiler, and the CUDA that conda's CuPy is built for.
CONDA_CHOOSES = {"cxx-compiler", "cuda-cccl", "cuda-cudart-dev", "cuda-nvdisasm", "cuda-nvrtc"}
# Not the lab's own packages: the interpreter, and the tools around it.
CONDA_ONLY = {"python", "pip", "make"}


def lab_requirements() -> list[Requirement]:
    """Every dependency of pyproject.toml, extras included, but for what only the lab's makers need, and the peer."""
    project = PYPROJECT["project"]
    extras = dict(project["optional-dependencies"])
    del extras["recipe"], extras["pictures"], extras["peer"]
    lists = [project["dependencies"], *extras.values()]
    return [Requirement(line) for lines in lists for line in lines]


def conda_requirements() -> dict[str, Requirement]:
    """Every package of environment.yml by its canonical name, those under `pip:` included."""
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = [line for line in lines if isinstance(line, str)]
    pip = [line for entry in lines if isinstance(entry, dict) for line in entry["pip"]]
    assert "--editable ." in pip
    packages = [Requirement(line) for line in conda + pip if not line.startswith("--")]
    return {canonicalize_name(package.name): package for package in packages}


def test_environment_yml_names_every_package_at_the_same_version() -> None:
    conda = conda_requirements()
    wanted = set()
    for requirement in lab_requirements():
        name = canonicalize_name(CONDA_NAMES.get(requirement.name, requirement.name))
        wanted.add(name)
        assert name in conda, f"environment.yml lacks {name}, which pyproject.toml names"
        if name not in CONDA_CHOOSES:
            assert conda[name].specifier == requirement.specifier, name
    assert set(conda) == wanted | CONDA_ONLY
    assert str(conda["python"].specifier) == PYPROJECT["project"]["requires-python"]


def pins() -> dict[str, list[Requirement]]:
    """constraints.txt by canonical name; a package may be pinned once for each Python version."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def test_constraints_pin_every_dependency_exactly_and_within_its_bounds() -> None:
    pinned = pins()
    for pin in (pin for same in pinned.values() for pin in same):
        assert re.fullmatch(r"==[0-9][^*]*", str(pin.specifier)), pin
    peer = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["peer"])
    for requirement in (*lab_requirements(), *peer):
        same = pinned.get(canonicalize_name(requirement.name))
        assert same, f"constraints.txt lacks {requirement.name}: run `make pins`"
        for pin in same:
            version = str(pin.specifier).removeprefix("==")
            assert requirement.specifier.contains(version), (requirement, pin)


@pytest.mark.parametrize("python", ["3.11.4", "3.11.9", "3.12.1", "3.13.0"])
def test_constraints_leave_one_version_a_package(python: str) -> None:
    environment = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }
    for name, same in pins().items():
        apply = [pin for pin in same if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(apply) <= 1, f"{name} is pinned {len(apply)} times for Python {python}"


def test_no_file_names_a_place_that_others_lack() -> None:
    for name in ["pyproject.toml", "constraints.txt", "environment.yml", "Makefile", ".ci/run"]:
        text = (ROOT / name).read_text()
        assert "://" not in text, f"{name} names a host"
        assert "/opt/" not in text and "/work/" not in text, f"{name} names a path of one machine"


@pytest.mark.parametrize(
    ("cuda", "arch", "extra"),
    [
        ((13, 0), (9, 0), "cuda13"),
        ((13, 1), (7, 5), "cuda13"),
        ((13, 0), (6, 1), "cuda12"),  # CUDA 13 no longer compiles for Pascal
        ((12, 4), (8, 9), "cuda12"),
        ((11, 8), (8, 6), None),
    ],
)
def test_cupy_follows_the_driver(
    cuda: tuple[int, int], arch: tuple[int, int], extra: str | None
) -> None:
    chosen, why = provision.cuda_extra(provision.Driver(cuda, arch))
    assert chosen == extra
    assert f"CUDA {cuda[0]}.{cuda[1]}" in why


class FakeCuda:
    """libcuda as ctypes shows it, of a machine whose GPUs have these compute capabilities."""

    def __init__(self, version: int, *archs: tuple[int, int], status: int = 0) -> None:
        self.version, self.archs, self.status = version, archs, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.archs)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.archs[device.value][attribute - 75]
        return 0


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        (FakeCuda(13020, (9, 0), (8, 6)), provision.Driver((13, 2), (8, 6))),
        (FakeCuda(12040, (7, 0)), provision.Driver((12, 4), (7, 0))),
        (FakeCuda(13000), None),  # a driver, but no GPU
        (FakeCuda(13000, (9, 0), status=100), None),  # CUDA_ERROR_NO_DEVICE
    ],
)
def test_driver_is_read_from_libcuda(
    cuda: FakeCuda, driver: provision.Driver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: cuda)
    assert provision.find_driver() == driver


def test_no_driver_means_no_cupy_and_says_where_kernels_run() -> None:
    chosen, why = provision.cuda_extra(None)
    assert chosen is None
    assert "CPU" in why


def test_a_machine_without_a_compiler_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "find_driver", lambda: None)
    monkeypatch.setattr(provision, "has_compiler", lambda: False)
    extras, notes = provision.choose_extras(test=True)
    assert extras == ["cpu-compiler", "test", "static"]
    assert any("compiler" in note for note in notes)


def test_every_extra_that_set_up_may_choose_exists() -> None:
    known = set(PYPROJECT["project"]["optional-dependencies"])
    assert {"cuda12", "cuda13", "cpu-compiler", "static", "test"} <= known


def test_an_old_python_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(provision.SetUpError, match=r"needs Python 3\.11 or newer"):
        provision.set_up(test=False)


def test_a_python_without_venv_is_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provision, "VENV", tmp_path / "venv")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(provision.SetUpError, match="apt install python3-venv"):
        provision.make_venv(clear=False)


def test_a_new_driver_starts_the_environment_afresh() -> None:
    stamp = provision.Stamp(provision.fingerprint(), provision.home(), ["cuda12", "test"])
    assert provision.must_start_afresh(stamp, ["cuda13"])
    assert not provision.must_start_afresh(stamp, ["cuda12"])
    assert provision.is_current(stamp, ["cuda12"])
    assert not provision.is_current(stamp, ["cuda12", "cpu-compiler"])


@pytest.mark.parametrize(
    ("driver", "extras"),
    [
        (provision.Driver((13, 0), (9, 0)), ["cuda13", "test", "static"]),
        (provision.Driver((12, 4), (8, 9)), ["cuda12", "test"]),
    ],
)
def test_nvrtc_13_stays_away_from_the_cupy_that_would_take_it_for_its_own(
    driver: provision.Driver, extras: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "find_driver", lambda: driver)
    monkeypatch.setattr(provision, "has_compiler", lambda: True)
    assert provision.choose_extras(test=True)[0] == extras
    assert "static" not in provision.choose_extras(test=False)[0]
    before = provision.Stamp(provision.fingerprint(), provision.home(), ["test", "static"])
    assert provision.must_start_afresh(before, extras) == ("cuda12" in extras)


@pytest.mark.parametrize(
    ("system", "machine", "there"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("win32", "AMD64", True),
        ("darwin", "arm64", False),
        ("darwin", "x86_64", False),
        ("linux", "ppc64le", False),
    ],
)
def test_nvidia_s_compiler_is_asked_for_only_where_it_exists(
    system: str, machine: str, there: bool
) -> None:
    place = {"sys_platform": system, "platform_machine": machine}
    lines = [Requirement(line) for line in PYPROJECT["project"]["optional-dependencies"]["static"]]
    assert len(lines) == 5
    assert all(line.marker and line.marker.evaluate(place) == there for line in lines)


def test_set_up_imports_nothing_but_the_standard_library() -> None:
    """It runs before anything is installed: -S takes site-packages away, -I the checkout."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='checked')"
    script = str(ROOT / "sovereign_lab" / "provision.py")
    subprocess.run([sys.executable, "-I", "-S", "-c", code, script], check=True)


def test_ci_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.rstrip().endswith("make test")


def test_a_wheel_carries_what_notebooks_read() -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in included.items():
        assert (ROOT / source).exists(), source
        assert target.startswith("sovereign_lab/")
    assert {"notebooks", "data/runs", "data/seed_results.csv"} <= set(included)
