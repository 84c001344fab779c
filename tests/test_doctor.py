"""`doctor` on machines that lack something: it says what, and the one thing to do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import sovereign_lab as sl
from sovereign_lab import cli, provision
from sovereign_lab.checkup import Check, Report, files, gpu, host
from sovereign_lab.devices.simt import builder
from sovereign_lab.models import catalog
from sovereign_lab.models.catalog import resolve
from sovereign_lab.provision import Driver

H200 = Driver(cuda=(13, 0), arch=(9, 0))


def checks(report: Report) -> dict[str, Check]:
    """By name; what holds for every report is looked at on the way."""
    for check in report.checks:
        assert check.found and "\n" not in check.found
        assert bool(check.todo) == (check.state != "works"), check
    assert report.ok == bool(report.devices)
    return {check.name: check for check in report.checks}


def use_driver(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    monkeypatch.setattr(gpu, "find_driver", lambda: driver)


@pytest.fixture
def fake_cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in CuPy's place, on a machine whose driver lists no GPU: CUDA 13.2, sm_75 to sm_121."""
    cuda = tmp_path / "cupy" / "cuda"
    cuda.mkdir(parents=True)
    (cuda.parent / "__init__.py").write_text("from cupy import cuda\n__version__ = '14.2.0'\n")
    (cuda / "__init__.py").write_text("from cupy.cuda import nvrtc, runtime\n")
    (cuda / "runtime.py").write_text(
        "class CUDARuntimeError(RuntimeError): pass\n"
        "def runtimeGetVersion(): return 13020\n"
        "def getDeviceCount(): raise CUDARuntimeError('cudaErrorInsufficientDriver')\n"
    )
    (cuda / "nvrtc.py").write_text(
        "def getVersion(): return 13, 2\ndef getSupportedArchs(): return 75, 90, 121\n"
    )
    for name in ("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nvrtc"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    builder.find_compiler.cache_clear()
    yield
    builder.find_compiler.cache_clear()


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Root writes anywhere: be nobody for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not tmp_path: nobody may not even look into that.
    folder = Path(tempfile.mkdtemp())
    (folder / "sovereign-lab").mkdir()
    for path in (folder / "sovereign-lab", folder):
        path.chmod(0o555)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield folder
    for path in (folder, folder / "sovereign-lab"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_machine_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    report = sl.doctor()
    found = checks(report)
    assert "simt" in report.devices
    for name in ("Python", "C++ compiler", "SIMT device"):
        assert found[name].state == "works", found[name]
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "SIMT device" in out and "The lab runs here" in out
    assert "The lab runs here" in repr(report), "a notebook shows the table"


def test_json_has_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is True and "simt" in record["devices"]
    assert {"name", "state", "found", "todo"} == set(record["checks"][0])
    assert {check["state"] for check in record["checks"]} <= {"works", "note", "broken"}


def test_no_gpu(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_driver(monkeypatch, None)
    report = sl.doctor()
    assert report.devices == ("simt",)
    assert checks(report)["CUDA device"] == Check(
        "CUDA device", "note", "no GPU to run on", gpu.WITHOUT_GPU
    )


def test_no_compiler_and_no_gpu(
    no_gpu: None, no_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is False and record["devices"] == []
    found = {check["name"]: check for check in record["checks"]}
    for name in ("C++ compiler", "SIMT device"):
        assert found[name]["state"] == "broken"
        assert "apt install g++" in found[name]["todo"]
    assert cli.main(["doctor"]) == 1
    assert "cannot run here yet" in capsys.readouterr().out


def test_cupy_without_a_driver(fake_cupy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distributions", lambda: [])
    monkeypatch.setattr(provision, "find_driver", lambda: None)
    use_driver(monkeypatch, None)
    report = sl.doctor()
    found = checks(report)
    assert report.devices == ("simt",)
    assert found["CuPy"].state == "note" and "no driver" in found["CuPy"].found
    assert found["CUDA runtime"].found == "13.2"
    assert found["NVRTC"].found == "13.2, targets sm_75 to sm_121"
    assert found["CUDA device"].state == "note"


def test_cupy_that_cannot_be_imported(fake_cupy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake_cupy / "cupy" / "__init__.py").write_text("raise ImportError('libcuda.so.1: no file')")
    for driver, state in ((None, "note"), (H200, "broken")):
        use_driver(monkeypatch, driver)
        for look in (gpu.check_cupy, gpu.check_runtime, gpu.check_nvrtc):
            (check,) = look("CuPy")
            assert check.state == state
        assert "libcuda.so.1" in next(iter(gpu.check_cupy("CuPy"))).found


@pytest.mark.parametrize(
    ("driver", "runtime", "nvrtc", "todo"),
    [
        (H200, "works", "works", ""),
        (Driver((12, 4), (9, 0)), "broken", "works", "sovereign-lab[cuda12]"),
        (Driver((13, 0), (6, 1)), "works", "broken", "sovereign-lab[cuda12]"),
        (Driver((13, 0), (15, 0)), "works", "note", "--upgrade"),
    ],
    ids=["fits", "old driver", "old GPU", "new GPU"],
)
def test_cupy_against_driver_and_gpu(
    fake_cupy: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: Driver,
    runtime: str,
    nvrtc: str,
    todo: str,
) -> None:
    use_driver(monkeypatch, driver)
    found = [*gpu.check_runtime("CUDA runtime"), *gpu.check_nvrtc("NVRTC")]
    assert [check.state for check in found] == [runtime, nvrtc]
    assert todo in found[0].todo + found[1].todo


def test_driver_in_a_container_without_libcuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_driver(monkeypatch, None)
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = gpu.check_driver("NVIDIA driver")
    assert check.state == "broken" and "--gpus all" in check.todo


def test_two_cupys_overwrite_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def __init__(self, name: str) -> None:
            self.name = name

    both = [Installed("cupy-cuda12x"), Installed("numpy"), Installed("cupy-cuda13x")]
    monkeypatch.setattr(metadata, "distributions", lambda: both)
    use_driver(monkeypatch, H200)
    (check,) = gpu.check_cupy("CuPy")
    assert check.state == "broken"
    assert (
        "uninstall -y cupy-cuda12x cupy-cuda13x; pip install 'sovereign-lab[cuda13]'" in check.todo
    )


def test_read_only_cache(no_gpu: None, read_only_cache: Path) -> None:
    with without_root():
        report = sl.doctor()
    found = checks(report)
    assert not report.ok
    for name in ("cache", "SIMT device"):
        assert found[name].state == "broken", found[name]
        assert str(read_only_cache) in found[name].found
        assert "XDG_CACHE_HOME" in found[name].todo


def test_a_file_where_the_cache_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (check,) = files.check_cache("cache")
    assert check.state == "broken" and check.todo == files.SET_CACHE


def test_half_downloaded_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not list(files.check_unfinished("unfinished files"))
    whole = resolve("synthetic:tiny")
    part = whole.with_name(f".{whole.name}.4711.part")
    part.write_bytes(whole.read_bytes()[:10_000])
    making = whole.with_name(".smollm2-135m-q4_0.gguf.making-abc")
    making.mkdir()
    (making / "wheel").write_bytes(bytes(2_000_000))
    (check,) = files.check_unfinished("unfinished files")
    assert check.state == "note" and "2.0 MB" in check.found
    assert str(part) in check.todo and str(making) in check.todo

    whole.write_bytes(whole.read_bytes()[:-1000])
    found = {check.name: check for check in files.check_models("models")}
    damaged = found["model synthetic:tiny"]
    assert damaged.state == "broken" and str(whole) in damaged.found
    assert "sovereign-lab models pull synthetic:tiny" in damaged.todo
    monkeypatch.setattr(catalog, "DEFAULT", "smollm2-135m")
    (absent,) = (check for check in files.check_models("models") if check.name == "models")
    assert absent.state == "note" and "sovereign-lab models pull smollm2-135m" in absent.todo


def test_half_of_a_model_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    blobs = tmp_path / "models--TheBloke--TinyLlama-1.1B-Chat-v1.0-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "0123.incomplete").write_bytes(bytes(3_000_000))
    (check,) = files.check_unfinished("unfinished files")
    assert "in part, 3.0 MB" in check.found
    assert check.todo == "Run: sovereign-lab models pull tinyllama-1.1b"


def test_packages_against_bounds_and_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"numpy": "2.1.0", "rich": "14.1.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    needs = ["numpy>=2.0", "rich>=14.0", "huge>=1; extra == 'hub'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr(metadata, "version", version)
    pins = tmp_path / "constraints.txt"
    pins.write_text("# pins\nnumpy==1.0 ; python_full_version < '3'\nnumpy==2.1.0\nrich==14.1.0\n")
    monkeypatch.setattr(host, "CONSTRAINTS", pins)

    def found() -> Check:
        (check,) = host.check_packages("packages")
        return check

    assert found().state == "works" and found().found.startswith("2 packages")
    versions["rich"] = "15.0.0"
    assert found().state == "note" and found().found == "rich is 15.0.0, and 14.1.0 was tested"
    versions["numpy"] = "1.26.4"
    assert found().state == "broken" and "numpy is 1.26.4, and >=2.0 is needed" in found().found
    del versions["numpy"]
    assert "numpy is missing" in found().found and str(pins) in found().todo
    monkeypatch.setattr(host, "CONSTRAINTS", tmp_path / "none")
    assert found().todo == "Run: pip install -U sovereign-lab"


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_memory", lambda: (2_000_000_000, 300_000_000))
    (check,) = host.check_cores_and_memory("cores, memory")
    assert check.state == "note" and "storyteller" in check.todo


def test_a_check_that_fails_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Iterator[Check]:
        raise RuntimeError("no such thing")

    monkeypatch.setitem(sl.checkup._CHECKS, "cache", broken)
    found = checks(sl.doctor())
    assert found["cache"].state == "broken" and "no such thing" in found["cache"].found
