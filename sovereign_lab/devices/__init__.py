"""Where kernels run: a CUDA GPU through CuPy, or the SIMT device, which runs the same files on a CPU.

What never goes in here: what a kernel computes, or anything that knows of models and phases.
"""

from sovereign_lab.devices.device import Device, Kernel, Properties
from sovereign_lab.devices.open import open_device

__all__ = ["Device", "Kernel", "Properties", "open_device"]
