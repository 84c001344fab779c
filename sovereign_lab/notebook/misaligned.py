"""Three kernels that a GPU would refuse for where they load from, each under the sanitizer and on the SIMT device."""

import re

import numpy as np

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.measure.sanitizer import Report, sanitize
from sovereign_lab.notebook.table import Table

BLOCKS = 8


def _arguments() -> dict[str, np.ndarray]:
    # A block more than the kernels read: a wide load must be wrong for where it begins, not for where it ends.
    return {"W": np.full((BLOCKS + 1) * 18, 7, np.uint8), "out": np.zeros(32, np.float32)}


def report(source: str) -> Report:
    """The sanitizer's findings of a kernel (W, out), launched with one warp; W is 8 blocks of Q4_0, out 32 floats."""
    return sanitize(source, 1, 32, _arguments(), name="careless.cu")


def told(source: str) -> str:
    """What the SIMT device says of such a kernel, without addresses, which are another at each run."""
    device = SimtDevice()
    args = [device.array(value) for value in _arguments().values()]
    try:
        device.launch(device.compile(source, name="careless.cu"), 1, 32, args)
    except LabError as error:
        return re.sub(r"0x[0-9a-f]+", "0x...", str(error))
    finally:
        device.close()
    return "nothing"


def findings(reports: dict[str, Report]) -> Table:
    """By kernel: what the sanitizer found first, in which line, and what stands there."""
    rows = []
    for name, found in reports.items():
        for f in found.findings[:1]:
            rows.append(
                [name, f.kind, str(f.line), f.text, re.sub(r"0x[0-9a-f]+", "0x...", f.explanation)]
            )
    return Table(["kernel", "finding", "line", "source", "explanation"], rows)
