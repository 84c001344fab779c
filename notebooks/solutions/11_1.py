import numpy as np

from sovereign_lab.notebook.exercises import check


def attend(chunks) -> np.ndarray | None:
    """The running maximum, sum and output, corrected chunk by chunk."""
    largest, total, output = -np.inf, 0.0, 0.0
    for scores, values in chunks:
        now = max(largest, scores.max())
        if now == -np.inf:  # nothing but masked positions so far: -inf minus -inf is not a number
            continue
        correction, weights = np.exp(largest - now), np.exp(scores - now)
        largest = now
        total = total * correction + weights.sum()
        output = output * correction + weights @ values
    return output / total


check("11.1", attend)
