"""What figures were measured with: the date, the device, and the versions that matter."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.builder import find_compiler


def environment(device: Device) -> dict[str, str]:
    """What the figures were measured with."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": device.properties.name,
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }
    if device.properties.kind == "cuda":
        import cupy

        runtime = cupy.cuda.runtime
        facts |= {
            "cupy": cupy.__version__,
            "cuda_runtime": str(runtime.runtimeGetVersion()),
            "cuda_driver": str(runtime.driverGetVersion()),
            "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        }
    else:
        facts["compiler"] = find_compiler().version
    return facts
