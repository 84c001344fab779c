"""Kernels become a language model: phases, the forward pass as a list of launches, generation.

What never goes in here: kernels, how a device runs them, or how to measure them.
"""

from sovereign_lab.engine.engine import Engine
from sovereign_lab.engine.generation import Generation
from sovereign_lab.engine.phases import PHASES, Phase

__all__ = ["PHASES", "Engine", "Generation", "Phase"]
