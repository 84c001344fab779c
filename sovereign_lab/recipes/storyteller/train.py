"""Training: AdamW in bf16, then a last part in which the network sees its weights as stored.

AdamW moves float32 masters. Before every step the network receives them: as they are at first, in
the last part after a trip through Q4_0 and Q8_0. The gradient at the stored weights is applied to
the masters, as if storing them were the identity (the straight-through estimator).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from sovereign_lab.models.quants import quantise_q4_0, unpack_q4_0
from sovereign_lab.recipes.storyteller.corpus import PADDING, Rows
from sovereign_lab.recipes.storyteller.network import Storyteller
from sovereign_lab.recipes.storyteller.quantise import Q4_0, as_stored, stored_type


@dataclass(frozen=True)
class Schedule:
    """Steps of `batch_rows` rows each. Rates are AdamW's learning rates.

    The first part warms up and falls along a cosine from peak_rate to a tenth of it; the second,
    quantisation-aware one falls in a line from quantised_rate to 0.
    """

    steps: int
    quantised_steps: int
    batch_rows: int
    peak_rate: float = 3e-3
    quantised_rate: float = 1e-3
    warm_up: int = 200
    weight_decay: float = 0.1

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over both parts."""
        if step >= self.steps:
            return self.quantised_rate * (1 - (step - self.steps) / self.quantised_steps)
        if step < self.warm_up:
            return self.peak_rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.peak_rate * (0.55 + 0.45 * math.cos(math.pi * done))


@dataclass(frozen=True)
class Losses:
    """Mean cross-entropy of a token in nats, in bf16 arithmetic, by what the weights are.

    bf16, q4_0_plain and q4_0_searched are the weights after the first part: as they are, stored by
    the max-abs rule, stored with the scale search. q4_0_trained are those after the last part,
    stored by the max-abs rule: what ships.
    """

    bf16: float
    q4_0_plain: float
    q4_0_searched: float
    q4_0_trained: float


@dataclass(frozen=True)
class Training:
    """What came out: masters by name (float32, on the CPU), losses by split, and the loss curve."""

    masters: dict[str, Tensor]
    losses: dict[str, Losses]
    curve: list[tuple[int, float]]
    tokens: int


def train(
    network: Storyteller,
    rows: Rows,
    validation: dict[str, Rows],
    schedule: Schedule,
    seed: int,
    progress: bool = False,
) -> Training:
    """Train the network where it lies; it ends up holding the weights as stored.

    rows and each split of validation are uint16 [rows, length].
    """
    device = network.token_embd.weight.device
    names = [name for name, _ in network.named_parameters()]
    parameters = list(network.parameters())
    masters = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.AdamW(
        [
            {"params": [m for m in masters if m.ndim == 2], "weight_decay": schedule.weight_decay},
            {"params": [m for m in masters if m.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    loss_of = torch.compile(batch_loss) if device.type == "cuda" else batch_loss
    batches = endless_batches(rows, schedule.batch_rows, seed, device)

    def put(weights: Sequence[Tensor]) -> dict[str, float]:
        """Give the network these weights; what they lose on each split."""
        _put(parameters, weights)
        return {split: mean_loss(network, part) for split, part in validation.items()}

    curve: list[tuple[int, float]] = []
    found: dict[str, dict[str, float]] = {}
    last = schedule.steps + schedule.quantised_steps
    bar = tqdm(range(last), "train", unit="step", mininterval=5, disable=not progress)
    for step in bar:
        if step == schedule.steps:
            found["bf16"] = put(masters)
            found["q4_0_plain"] = put(as_stored(names, masters))
            found["q4_0_searched"] = put(_as_stored_with_search(names, masters))
        quantised = step >= schedule.steps
        _put(parameters, as_stored(names, masters) if quantised else masters)
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of(network, next(batches))
        loss.backward()
        for master, parameter in zip(masters, parameters, strict=True):
            master.grad, parameter.grad = parameter.grad, None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimiser.step()
        if step % 100 == 0 or step == last - 1:
            curve.append((step, round(loss.item(), 4)))
            bar.set_postfix(loss=curve[-1][1])
    found["q4_0_trained"] = put(as_stored(names, masters))

    return Training(
        masters={name: master.cpu() for name, master in zip(names, masters, strict=True)},
        losses={
            split: Losses(**{weights: losses[split] for weights, losses in found.items()})
            for split in validation
        },
        curve=curve,
        tokens=last * schedule.batch_rows * (rows.shape[1] - 1),
    )


def batch_loss(network: Storyteller, batch: Tensor, autocast: bool = True) -> Tensor:
    """The mean cross-entropy of predicting each token of int64 [rows, length] from those before.

    In bf16 arithmetic on a GPU; in float32 without autocast, and on a CPU, where bf16 only costs
    time. Padding is not predicted.
    """
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast and batch.is_cuda):
        logits = network(batch[:, :-1])
    return F.cross_entropy(
        logits.float().flatten(0, 1),
        batch[:, 1:].flatten(),
        ignore_index=PADDING,
    )


@torch.no_grad()
def mean_loss(network: Storyteller, rows: Rows, autocast: bool = True, at_once: int = 32) -> float:
    """The mean cross-entropy of a token over all rows, in nats."""
    device = network.token_embd.weight.device
    total, count = 0.0, 0
    for first in range(0, len(rows), at_once):
        batch = torch.from_numpy(rows[first : first + at_once].astype("int64")).to(device)
        predicted = int((batch[:, 1:] != PADDING).sum())
        total += batch_loss(network, batch, autocast).item() * predicted
        count += predicted
    return total / count


def endless_batches(rows: Rows, size: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Batches int64 [size, length] on the device, without end; every epoch in a new order."""
    random = torch.Generator().manual_seed(seed)
    on_device = torch.from_numpy(rows.astype("int32")).to(device)
    while True:
        order = torch.randperm(len(rows), generator=random).to(device)
        for chosen in order.split(size):
            if len(chosen) == size or len(rows) < size:
                yield on_device[chosen].long()


@torch.no_grad()
def _put(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(parameters), list(weights))


def _as_stored_with_search(names: Sequence[str], masters: Sequence[Tensor]) -> list[Tensor]:
    """As `as_stored`, but for Q4_0 with the scale search that requantises other models."""
    stored = as_stored(names, masters)
    for i, name in enumerate(names):
        if stored_type(name) == Q4_0:
            blocks = quantise_q4_0(masters[i].cpu().numpy())
            stored[i] = torch.from_numpy(unpack_q4_0(blocks)).to(masters[i].device)
    return stored
