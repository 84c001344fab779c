"""Exercises: a check that says what is wrong, and a solution to look at when one is stuck.

`check("07.1", answer)` prints a verdict; `solution("07.1")` shows the file under notebooks/solutions/.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from IPython.display import Markdown

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.signature import without_comments
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, trace
from sovereign_lab.notebook.places import in_checkout

# Floats on either side of an output that a kernel must leave alone, and what they hold.
CANARIES = 64
CANARY = np.float32(-12345.678)
TOLERANCE = 1e-5


class NotSolvedError(Exception):
    """What is wrong with an answer, in a sentence; without one, the answer is still the starter."""


def check(exercise: str, answer: Any) -> None:
    """Print whether `answer` solves the exercise, and if not, what is wrong. Raises LabError for an unknown one."""
    if exercise not in _CHECKS:
        raise LabError(f"There is no exercise {exercise!r}; there are {', '.join(_CHECKS)}.")
    try:
        print(f"Exercise {exercise}: solved. {_CHECKS[exercise](answer)}")
    except NotSolvedError as error:
        print(f"Exercise {exercise}: not solved yet. {error}".rstrip())


def solution(exercise: str) -> Markdown:
    """Show the solution of an exercise. Raises LabError for an unknown one."""
    if exercise not in _CHECKS:
        raise LabError(f"There is no exercise {exercise!r}; there are {', '.join(_CHECKS)}.")
    return Markdown(f"```python\n{solution_text(exercise)}```")


def solution_text(exercise: str) -> str:
    """The Python that solves an exercise, to be run in place of its starter cell."""
    return in_checkout(f"notebooks/solutions/{exercise.replace('.', '_')}.py").read_text()


# ---- 07.1: count the sectors of a request ----

PATTERNS = {
    "32 neighbours, 4 bytes a lane": (range(0, 128, 4), 4),
    "the same, one float further on": (range(4, 132, 4), 4),
    "32 lanes, 128 bytes apart": (range(0, 4096, 128), 4),
    "all lanes at one address": ([1000] * 32, 4),
    "one byte a lane, 18 bytes apart": (range(2, 578, 18), 1),
    "16 bytes a lane": (range(0, 512, 16), 16),
    "16 bytes a lane, 8 bytes off": (range(8, 520, 16), 16),
    "three lanes only": ([64, 4, 68], 4),
    "lanes in reverse": (range(124, -4, -4), 4),
}


def _check_sectors(answer: Callable[[Sequence[int], int], int]) -> str:
    for name, (starts, size) in PATTERNS.items():
        right = len(
            {byte // SECTOR_BYTES for start in starts for byte in range(start, start + size)}
        )
        got = answer(list(starts), size)
        if got is None:
            raise NotSolvedError
        if got != right:
            raise NotSolvedError(f"{name}: {right} sectors, yours says {got!r}.")
    return f"{len(PATTERNS)} access patterns counted right."


# ---- 07.2: the coalesced GEMV without a shuffle for every block ----


def _check_broadcast(source: str) -> str:
    gemv = op("gemv_q4_0")
    starter = gemv.variant("coalesced")
    if source == starter.source:
        raise NotSolvedError
    try:
        _check_gemv(source, open_device("simt"))
        rows, blocks_per_row = 512, 64
        rng = np.random.default_rng(0)
        args = {
            "W": rng.integers(0, 60, (rows, blocks_per_row * 18), np.uint8),
            "x": rng.standard_normal(blocks_per_row * 32, np.float32),
            "y": np.full(rows, np.nan, np.float32),
            "rows": rows,
            "blocks_per_row": blocks_per_row,
        }
        grid = gemv.grid(starter, args)
        before = trace(starter.path, grid, starter.threads, args).sectors("load")
        after = trace(source, grid, starter.threads, args, name="yours.cu").sectors("load")
    except LabError as error:
        raise NotSolvedError(str(error)) from None
    if "__shfl" in without_comments(source):
        raise NotSolvedError("The results are right, but a shuffle is still there.")
    if after > before:
        raise NotSolvedError(
            f"The results are right, but loads touch {after:,} sectors where the starter's touch {before:,}."
        )
    return f"Right on odd shapes, no shuffle in the loop, and load sectors {before:,} before, {after:,} after."


def _check_gemv(source: str, device: Device) -> None:
    """Run the kernel on odd shapes with poisoned outputs between canaries; raise NotSolvedError at what is wrong."""
    gemv = op("gemv_q4_0")
    variant = gemv.variant("coalesced")
    kernel = device.compile(source, name="yours.cu")
    for args in cases(gemv, np.random.default_rng(7)):
        shape = f"{args['rows']} rows of {args['blocks_per_row']} blocks"
        fenced = np.full(args["rows"] + 2 * CANARIES, CANARY)
        y = fenced[CANARIES:-CANARIES]
        y[:] = np.nan
        on_device = {
            k: device.array(v) if isinstance(v, np.ndarray) else v for k, v in args.items()
        }
        on_device["y"] = y
        device.launch(kernel, gemv.grid(variant, args), variant.threads, list(on_device.values()))
        expected = gemv.reference(args)["y"]
        if not (np.all(fenced[:CANARIES] == CANARY) and np.all(fenced[-CANARIES:] == CANARY)):
            raise NotSolvedError(f"{shape}: the kernel writes outside y.")
        if np.isnan(y).any():
            raise NotSolvedError(
                f"{shape}: row {int(np.isnan(y).argmax())} of y is never written, or is NaN."
            )
        wrong = np.abs(y - expected) > TOLERANCE * np.abs(expected).max() + TOLERANCE
        if wrong.any():
            row = int(wrong.argmax())
            raise NotSolvedError(
                f"{shape}: y[{row}] is {y[row]:.6g}, and should be {expected[row]:.6g}."
            )


_CHECKS: dict[str, Callable[[Any], str]] = {"07.1": _check_sectors, "07.2": _check_broadcast}
