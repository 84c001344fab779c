import numpy as np

from sovereign_lab.notebook.exercises import check


def decide(base_ms: list[float], change_ms: list[float]) -> str:
    """By the bootstrap: where the median of a round's ratio lies, with 95 % confidence."""
    ratios = np.array(base_ms) / np.array(change_ms)
    drawn = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    if low > 1.01:
        return "keep"
    return "revert" if high < 0.99 else "no difference"


check("13.1", decide)
