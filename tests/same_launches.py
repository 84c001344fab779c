"""Phases that differ from another in nothing that a scored text shows on the SIMT device."""

import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES


def skip_if_the_same_launches(device: Device, phase: str) -> None:
    """Skip where an earlier phase launches the same kernels in the same order for a text that is given.

    Sampling takes no part in scoring, and the SIMT device runs branches in turn; on a GPU streams may go wrong.
    """

    def kernels(phase_id: str) -> dict[str, str]:
        return {op: v for op, v in PHASES[phase_id].plan.items() if op != "sample"}

    first = next(p for p in PHASES if kernels(p) == kernels(phase))
    if first != phase and device.properties.kind == "simt":
        pytest.skip(f"scores a text with the same launches as phase {first}")
