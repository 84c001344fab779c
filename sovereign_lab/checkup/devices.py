"""Devices are not judged by what is installed: each has to run a kernel and give the right numbers."""

from collections.abc import Iterator

from sovereign_lab.checkup.files import SET_CACHE
from sovereign_lab.checkup.gpu import unusable
from sovereign_lab.checkup.report import TELL_US, Check
from sovereign_lab.errors import LabError
from sovereign_lab.provision import find_driver

INSTALL_COMPILER = "Install g++ or clang++ (Debian: apt install g++), or run: pip install ziglang"

# Needs the headers and types that the engine's kernels need.
PROBE = """
#include <cuda_fp16.h>
extern "C" __global__ void probe(half* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = __float2half(2.0f * __half2float(x[i]));
}
"""


def check_cuda_device(name: str) -> Iterator[Check]:
    """Whether kernels run on the GPU."""
    from sovereign_lab.devices.cuda import why_no_gpu

    reason, driver = why_no_gpu(), find_driver()
    if reason is None:
        yield _probe(name, "cuda")
    else:
        yield unusable(name, "no GPU to run on" if driver is None else reason, driver)


def check_compiler(name: str) -> Iterator[Check]:
    """What the SIMT device compiles kernels with."""
    from sovereign_lab.devices.simt.builder import find_compiler

    try:
        yield Check(name, "works", find_compiler().version)
    except LabError:
        yield Check(name, "broken", "none found", INSTALL_COMPILER)


def check_simt_device(name: str) -> Iterator[Check]:
    """Whether kernels run on the CPU."""
    yield _probe(name, "simt")


def _probe(name: str, choice: str) -> Check:
    """Compile a kernel on a device, run it, and look at its numbers."""
    import numpy as np

    from sovereign_lab.devices import open_device

    try:
        device = open_device(choice)
        x = device.array(np.arange(1000, dtype=np.float16))
        kernel = device.compile(PROBE, name="probe.cu")
        device.launch(kernel, 4, 256, [x, np.int32(1000)])
        right = np.array_equal(device.to_host(x), np.arange(0, 2000, 2, dtype=np.float16))
    except (LabError, OSError) as error:
        return Check(name, "broken", str(error).splitlines()[0], _remedy(error))
    what = f"{device.properties.name} ({device.properties.arch})"
    if not right:
        return Check(name, "broken", f"{what} gave wrong numbers", TELL_US)
    return Check(name, "works", f"{what} ran a kernel right")


def _remedy(error: Exception) -> str:
    from sovereign_lab.models.cache import cache_dir

    if "needs a C++ compiler" in str(error):
        return INSTALL_COMPILER
    if str(cache_dir()) in str(error):
        return SET_CACHE
    if isinstance(error, OSError):  # CuPy keeps what it compiled in a cache of its own
        return "Set CUPY_CACHE_DIR to a directory that you can write to."
    return TELL_US
