"""How long a learner waits for a card: `python -m sovereign_lab.measure.trial.cost` prints the median of some edits."""

import time

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.trial import trial
from sovereign_lab.measure.worker import Worker

EDITS = 10


def edit_figures(device: str = "auto", edits: int = EDITS) -> list[Figure]:
    """Seconds from a small edit to its card, in a worker that is there already: compiled anew every time.

    The edit puts another constant into the coalesced GEMV, whose result stays right. Raises LabError where a card does
    not say so.
    """
    gemv = op("gemv_q4_0")
    source = gemv.variant("coalesced").source
    place = "float sum = 0;"
    salt = time.time_ns()  # no earlier run has compiled these
    samples = []
    with Worker(device) as worker:
        for i in range(edits + 1):
            edited = source.replace(
                place, f"const long long edit = {salt + i}; {place} (void)edit;"
            )
            began = time.perf_counter()
            card = worker.call(trial, gemv.name, edited, "coalesced")
            if i:  # the first one waits for the worker
                samples.append(time.perf_counter() - began)
            if not card.good:
                raise LabError(f"The edit that bench makes should be right. {card.verdict}")
    return [Figure.of(f"an edit of {gemv.name}, to its card, {card.device}", "s", samples)]


if __name__ == "__main__":
    print(*edit_figures(), sep="\n")
