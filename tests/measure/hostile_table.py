"""The hostile kernels on a device at hand, as a Markdown table.

From the root of the checkout: `PYTHONPATH=.:tests python -m measure.hostile_table cuda`
"""

import sys

from measure.hostile_kernels import GOOD, HOSTILE, Hostile, attempt

from sovereign_lab.errors import LabError
from sovereign_lab.measure.worker import Worker, WorkerEnded


def main(device: str) -> None:
    """Print a line a kernel: how its call ended, what was told, and whether the good kernel behind it worked."""
    print("| kernel | worker | what is told | the next call |\n|---|---|---|---|")
    with Worker(device, time_limit=2.0) as worker:
        for hostile in HOSTILE:
            ended = "lives"
            try:
                text = worker.call(attempt, hostile)
            except LabError as error:
                text = str(error)
                ended = f"ended: {error.reason}" if isinstance(error, WorkerEnded) else ended
            try:
                behind = worker.call(attempt, Hostile("good", GOOD, ""), time_limit=60)
            except LabError as error:
                behind = f"failed: {error}"
            told = " ".join(text.split()).replace("|", "\\|")[:200]
            print(f"| {hostile.name} | {ended} | {told} | {behind} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
