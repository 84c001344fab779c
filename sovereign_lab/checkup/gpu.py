"""The way to an NVIDIA GPU: driver, CuPy, CUDA runtime, NVRTC."""

import shutil
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sovereign_lab.checkup.report import Check
from sovereign_lab.provision import Driver, cuda_extra, find_driver

WITHOUT_GPU = "Nothing, without an NVIDIA GPU."


def check_driver(name: str) -> Iterator[Check]:
    """Whether libcuda is there and lists a GPU."""
    driver = find_driver()
    if driver is not None:
        found = f"supports CUDA {_dotted(driver.cuda)}; the oldest GPU here is sm_{_arch(driver)}"
        yield Check(name, "works", found)
    elif shutil.which("nvidia-smi") or Path("/dev/nvidiactl").exists():
        todo = (
            "In a container: start it with `--gpus all`; else install the driver again and restart."
        )
        yield Check(name, "broken", "an NVIDIA driver is here, but libcuda finds no GPU", todo)
    else:
        yield Check(name, "note", "no NVIDIA driver with a GPU", WITHOUT_GPU)


def check_cupy(name: str) -> Iterator[Check]:
    """Whether CuPy is installed, once, and can be imported."""
    driver = find_driver()
    installed = sorted(
        {d.name for d in metadata.distributions() if d.name and d.name.startswith("cupy")}
    )
    if len(installed) > 1:
        todo = f"Run: pip uninstall -y {' '.join(installed)}; {install_cupy(driver)}"
        yield Check(name, "broken", f"{' and '.join(installed)} overwrite each other", todo)
        return
    cupy = _import_cupy()
    if isinstance(cupy, str):
        yield unusable(name, cupy, driver)
    elif driver is None:
        found = f"{cupy.__version__} is installed, but there is no driver for it to use"
        yield Check(name, "note", found, WITHOUT_GPU)
    else:
        yield Check(name, "works", cupy.__version__)


def check_runtime(name: str) -> Iterator[Check]:
    """The CUDA runtime that CuPy brings, against the driver."""
    driver, cupy = find_driver(), _import_cupy()
    if isinstance(cupy, str):
        yield unusable(name, "comes with CuPy", driver)
        return
    version = cupy.cuda.runtime.runtimeGetVersion()
    runtime = version // 1000, version % 1000 // 10
    if driver is not None and runtime[0] > driver.cuda[0]:
        found = f"{_dotted(runtime)}, too new for the driver, which supports {_dotted(driver.cuda)}"
        todo = f"Run: pip uninstall -y cupy-cuda{runtime[0]}x; {install_cupy(driver)}"
        yield Check(name, "broken", found, todo)
    else:
        yield Check(name, "works", _dotted(runtime))


def check_nvrtc(name: str) -> Iterator[Check]:
    """Whether the compiler of our kernels loads, and targets the GPU that is here."""
    driver, cupy = find_driver(), _import_cupy()
    if isinstance(cupy, str):
        yield unusable(name, "comes with CuPy", driver)
        return
    try:
        from cupy.cuda import nvrtc

        version, archs = _dotted(nvrtc.getVersion()), sorted(map(int, nvrtc.getSupportedArchs()))
    except (RuntimeError, OSError, ImportError) as error:
        yield unusable(name, f"cannot be loaded: {_first_line(error)}", driver)
        return
    targets = f"{version}, targets sm_{archs[0]} to sm_{archs[-1]}"
    if driver is None:
        yield Check(name, "works", targets)
    elif _arch(driver) < archs[0]:
        todo = f"Run: pip uninstall -y cupy-cuda13x; {install_cupy(driver)}"
        yield Check(name, "broken", f"{targets}; this GPU is sm_{_arch(driver)}", todo)
    elif _arch(driver) > archs[-1]:
        found = f"{targets}; the driver has to translate for this GPU, sm_{_arch(driver)}"
        yield Check(name, "note", found, f"Run: {install_cupy(driver)} --upgrade")
    else:
        yield Check(name, "works", f"{version}, targets this GPU, sm_{_arch(driver)}")


def unusable(name: str, found: str, driver: Driver | None) -> Check:
    """Something that only a GPU needs: no matter where there is none."""
    if driver is None:
        return Check(name, "note", found, WITHOUT_GPU)
    return Check(name, "broken", found, f"Run: {install_cupy(driver)}")


def install_cupy(driver: Driver | None) -> str:
    """The command that installs the CuPy for `driver`."""
    extra, _ = cuda_extra(driver)
    return f"pip install 'sovereign-lab[{extra or 'cuda13'}]'"


def _import_cupy() -> Any:
    """CuPy, or why there is none (a str)."""
    if find_spec("cupy") is None:
        return "not installed; only a GPU needs it"
    try:
        import cupy
    except ImportError as error:
        return f"cannot be imported: {_first_line(error)}"
    return cupy


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _arch(driver: Driver) -> int:
    return 10 * driver.arch[0] + driver.arch[1]


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)
