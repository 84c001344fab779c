"""`doctor`: what of this machine the lab can use, and for each thing that it cannot, what to do.

Never here: anything that sets up or repairs. A check takes the name of its line and yields what it found.
"""

from collections.abc import Callable, Iterator

from sovereign_lab.checkup import devices, files, gpu, host
from sovereign_lab.checkup.report import TELL_US, Check, Report

__all__ = ["Check", "Report", "doctor"]

_CHECKS: dict[str, Callable[[str], Iterator[Check]]] = {
    "Python": host.check_python,
    "packages": host.check_packages,
    "NVIDIA driver": gpu.check_driver,
    "CuPy": gpu.check_cupy,
    "CUDA runtime": gpu.check_runtime,
    "NVRTC": gpu.check_nvrtc,
    "CUDA device": devices.check_cuda_device,
    "C++ compiler": devices.check_compiler,
    "SIMT device": devices.check_simt_device,
    "cores, memory": host.check_cores_and_memory,
    "cache": files.check_cache,
    "unfinished files": files.check_unfinished,
    "models": files.check_models,
}
# The lines that say whether the lab can run.
_DEVICES = {"CUDA device": "cuda", "SIMT device": "simt"}


def doctor() -> Report:
    """Look at everything the lab uses; takes some seconds, and longer the first time it compiles."""
    checks: list[Check] = []
    devices: list[str] = []
    for name, look in _CHECKS.items():
        found = _safely(name, look)
        checks += found
        if name in _DEVICES and found[0].state == "works":
            devices.append(_DEVICES[name])
    return Report(tuple(checks), tuple(devices))


def _safely(name: str, look: Callable[[str], Iterator[Check]]) -> list[Check]:
    try:
        return list(look(name))
    except Exception as error:  # what a strange machine can raise has no end
        return [Check(name, "broken", f"{type(error).__name__}: {error}", TELL_US)]
