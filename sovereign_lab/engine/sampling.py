"""From logits to a token, on the host."""

import numpy as np

from sovereign_lab.errors import LabError


class Sampler:
    """Draws tokens from softmax(logits / temperature) with one generator, seeded once.

    Raises LabError for a temperature that is negative or not a number. At temperature 0 the engine takes the
    argmax on the device and no sampler is made.
    """

    def __init__(self, temperature: float, seed: int) -> None:
        if not temperature >= 0 or np.isinf(temperature):
            raise LabError(
                f"A temperature is 0 (always the most likely token) or more; got {temperature}."
            )
        self.temperature = temperature
        self._random = np.random.default_rng(seed)

    def pick(self, logits: np.ndarray) -> int:
        """One token id from float32 logits [vocab]."""
        # In float64, by the Gumbel trick: argmax(logits / T + noise) is a draw from the softmax.
        noise = self._random.gumbel(size=logits.shape)
        return int(np.argmax(logits.astype(np.float64) / self.temperature + noise))
