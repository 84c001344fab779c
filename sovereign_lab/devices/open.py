"""Choose a device by name, or the best one that is there."""

import os

from sovereign_lab.devices.device import Device
from sovereign_lab.errors import LabError

CHOICES = ("auto", "simt", "cuda")


def open_device(choice: str = "auto") -> Device:
    """A device to run kernels on.

    `choice`: "cuda", "simt", or "auto": the GPU when there is one, else the SIMT device. The environment
    variable SOVEREIGN_DEVICE decides what "auto" means where it is set. Raises LabError if the device asked
    for is not there; the message says what to do.
    """
    if choice == "auto":
        choice = os.environ.get("SOVEREIGN_DEVICE", "auto")
    if choice not in CHOICES:
        raise LabError(f"Unknown device {choice!r}: choose one of {', '.join(CHOICES)}.")
    if choice == "simt":
        from sovereign_lab.devices.simt.device import SimtDevice

        return SimtDevice()
    from sovereign_lab.devices.cuda import CudaDevice, why_no_gpu

    reason = why_no_gpu()
    if choice == "cuda":
        if reason:
            raise LabError(f"No CUDA GPU to run on: {reason}")
        return CudaDevice()
    return open_device("simt") if reason else CudaDevice()
