"""CUDA C++ kernels, one file a step, and their table of contents.

What never goes in here: anything that knows a model, a phase or a device. Sizes come as arguments.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
INCLUDE = FOLDER / "include"
