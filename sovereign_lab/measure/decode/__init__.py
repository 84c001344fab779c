"""How fast is decoding, phase after phase and along the context, beside llama.cpp in one run? Is the text still right?

    python -m sovereign_lab.measure.decode --model synthetic:tinyllama-1.1b --device cuda --record run.json

With `--peer FOLDER`, an unpacked build of llama.cpp with its Python binding, llama.cpp takes its turn in every round.
"""

from sovereign_lab.measure.decode.facts import (
    BASE,
    CONTEXTS,
    LLAMA_CPP,
    DecodeRun,
    Difference,
    Peer,
    Stages,
    TextCheck,
    Times,
)
from sovereign_lab.measure.decode.turns import PHASES_MEASURED, run

__all__ = [
    "BASE",
    "CONTEXTS",
    "LLAMA_CPP",
    "PHASES_MEASURED",
    "DecodeRun",
    "Difference",
    "Peer",
    "Stages",
    "TextCheck",
    "Times",
    "run",
]
