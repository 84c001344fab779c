"""The CPU before CUDA: one forward pass on the host, with several ways to multiply by a Q4_0 matrix.

Here, and nowhere else, code is compiled with numba. What never goes in: anything that runs on a device, and imports
of any room but `models` and `errors`.
"""

from sovereign_lab.prelude.runner import CpuGeneration, CpuRunner
from sovereign_lab.prelude.steps import STEPS, Step, step

__all__ = ["STEPS", "CpuGeneration", "CpuRunner", "Step", "step"]
