"""How far is llama.cpp ahead, or behind? The same file on the same machine, in turn with ours.

Never here: llama.cpp itself. It is the learner's own `llama-cpp-python`, a measuring stick and no part of the lab.
"""

from sovereign_lab.measure.peer.llama import LlamaCpp, llama_cpp
from sovereign_lab.measure.peer.run import (
    CONTEXTS,
    PROMPTS,
    PeerRun,
    Point,
    begin,
    points,
    that_fit,
)

__all__ = [
    "CONTEXTS",
    "PROMPTS",
    "LlamaCpp",
    "PeerRun",
    "Point",
    "begin",
    "llama_cpp",
    "points",
    "that_fit",
]
