"""What figures were measured with: the date, the device, and the versions that matter."""

import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.builder import find_compiler


def environment(device: Device) -> dict[str, str]:
    """What the figures were measured with; clocks as they are at the moment of the call."""
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
            **_nvidia_smi(),
        }
    else:
        facts["compiler"] = find_compiler().version
    return facts


def _nvidia_smi() -> dict[str, str]:
    """The driver's version, and the clocks now and at most; nothing where `nvidia-smi` is missing or fails."""
    asked = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = [tool, f"--query-gpu={','.join(asked)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return {}
    values = [value.strip() for value in answer.stdout.strip().split(",")]
    return dict(zip(asked, values, strict=False))
