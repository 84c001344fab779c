"""What a token is made of: the launches of a forward pass by op, and what each of them is for."""

from collections import Counter
from collections.abc import Sequence

from sovereign_lab.engine.forward import Call
from sovereign_lab.engine.phases import Phase
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.roofline import TokenBytes
from sovereign_lab.models.model import Config
from sovereign_lab.notebook.op_times import OpTime
from sovereign_lab.notebook.table import Table


def count_launches(calls: Sequence[Call]) -> Counter[str]:
    """Launches by op, in the order in which the ops first come."""
    return Counter(call.op for call in calls)


def launch_table(phase: Phase, calls: Sequence[Call], config: Config) -> Table:
    """By op: what it computes, the phase's kernel for it, its threads a block, and its launches a token."""
    rows = []
    for name, count in count_launches(calls).items():
        variant = op(name).variant(phase.plan[name])
        layers, rest = divmod(count, config.layers)
        formula = " + ".join(
            [*([f"{layers} a layer"] if layers else []), *([str(rest)] if rest else [])]
        )
        meaning, file = op(name).meaning, variant.path.name
        rows.append([name, meaning, file, str(variant.threads), formula, str(count)])
    rows.append(["all", "", "", "", "", str(len(calls))])
    return Table(["op", "what it computes", "kernel", "threads", "launches", "a token"], rows)


def reading_table(times: dict[str, OpTime], token: TokenBytes) -> Table:
    """The two ops that read nearly all bytes of a token: how fast they read them, in a recorded run."""
    rows = []
    for name, nbytes in (("gemv_q4_0", token.layers), ("logits", token.head)):
        us = times[name].us
        rows.append(
            [name, f"{nbytes / 1e6:.0f} MB", f"{us / 1e3:.2f} ms", f"{nbytes / us / 1e3:.0f} GB/s"]
        )
    return Table(["op", "bytes it must read", "time", "so it reads"], rows)
