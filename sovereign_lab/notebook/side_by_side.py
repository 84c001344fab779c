"""Exercise 06.1: which launches of a layer may run side by side, by what each of them reads and writes."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from sovereign_lab.devices import open_device
from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.engine import PHASES, forward
from sovereign_lab.engine.forward import Call
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.kernels.registry import op
from sovereign_lab.models.model import Config, matrix_shapes
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

Groups = Sequence[Sequence[int]]
GEMV_NAMES = {
    "wq": "WQ", "wk": "WK", "wv": "WV", "wo": "WO", "w_gate": "gate", "w_up": "up", "w_down": "down"
}  # fmt: skip
# Positions that arrays are made for where only their names and the launches' shapes matter.
CONTEXT = 16


class Touches(NamedTuple):
    """A launch, and the names of the arrays that it reads and writes."""

    name: str
    reads: frozenset[str]
    writes: frozenset[str]


def calls_of(phase: str, config: Config) -> tuple[list[Call], dict[int, str]]:
    """A token's calls at a phase, as the engine makes them, over arrays with no weights in them.

    Also the arrays' names by id, which are those of the engine; every layer's weights and cache go by one name.
    """
    device, chosen = open_device("simt"), PHASES.phase(phase)
    state = forward.State.allocate(device, config, CONTEXT)
    kv = KVCache.allocate(device, config, CONTEXT, "fp16")
    layers = tuple(_layer(config) for _ in range(config.layers))
    embedding, norm, head, inv_freq = (np.empty(1, np.float32) for _ in range(4))
    weights = forward.DeviceWeights(embedding, layers, norm, head, inv_freq)
    named = {field.name: getattr(state, field.name) for field in fields(state)}
    named |= {"embedding": embedding, "output_norm": norm, "head": head, "inv_freq": inv_freq}
    names = {id(array): name for name, array in named.items()}
    for layer in layers:
        for field in fields(layer):
            part = getattr(layer, field.name)
            names[id(getattr(part, "blocks", part))] = field.name
    names |= {id(array): "keys" for array in kv.keys} | {id(array): "values" for array in kv.values}
    calls = [
        *forward.layers(chosen.plan, config, weights, state, kv, CONTEXT, chosen.streams),
        *forward.head(config, weights, state),
        forward.advance(state, state.best),
    ]
    return calls, names


def _layer(config: Config) -> forward.DeviceLayer:
    matrices = {
        name: forward.DeviceMatrix(np.empty(1, np.uint8), rows, cols // 32)
        for name, (rows, cols) in matrix_shapes(config).items()
    }
    return forward.DeviceLayer(
        attention_norm=np.empty(1, np.float32), ffn_norm=np.empty(1, np.float32), **matrices
    )


def one_layer(calls: Sequence[Call], config: Config) -> list[Call]:
    """The calls of the first layer: from its first rmsnorm to its second add."""
    adds = [i for i, call in enumerate(calls) if call.op == "add"]
    assert len(adds) == 2 * config.layers
    return list(calls[1 : adds[1] + 1])


def touches(phase: str, call: Call, names: dict[int, str]) -> Touches:
    """What a launch reads and writes, by its kernel's signature: `const` arrays are read, others count as both."""
    source = op(call.op).variant(PHASES[phase].plan[call.op]).source
    parameters = parse_signature(source, {"KV": "half"}).parameters
    arrays = [
        (p.const, names[id(a)])
        for p, a in zip(parameters, call.args.values(), strict=True)
        if p.pointer
    ]
    return Touches(
        call_name(call, names),
        frozenset(name for _, name in arrays),
        frozenset(name for const, name in arrays if not const),
    )


def call_name(call: Call, names: dict[int, str]) -> str:
    """The op, or for a GEMV its matrix."""
    return GEMV_NAMES[names[id(call.args["W"])]] if call.op == "gemv_q4_0" else call.op


def layer_touches(phase: str = "3", config: Config = TINYLLAMA) -> list[Touches]:
    """The launches of one layer at a phase, in order, with what they read and write."""
    config = replace(config, layers=1)
    calls, names = calls_of(phase, config)
    return [touches(phase, call, names) for call in one_layer(calls, config)]


def touches_table(launches: Sequence[Touches]) -> Table:
    """Launches in order, with what each reads and writes."""
    rows = [
        [str(i), t.name, ", ".join(sorted(t.reads)), ", ".join(sorted(t.writes))]
        for i, t in enumerate(launches)
    ]
    return Table(["", "launch", "reads", "writes"], rows)


# ---- the check ----


def _made_up(*launches: tuple[str, str, str]) -> list[Touches]:
    return [Touches(n, frozenset(r.split()), frozenset(w.split())) for n, r, w in launches]


MADE_UP = {
    "two that only read the same array": _made_up(("a", "x", "p"), ("b", "x", "q")),
    "one that overwrites what an earlier one reads": _made_up(("a", "x", "p"), ("b", "q", "x")),
    "two that write the same array": _made_up(("a", "x", "p"), ("b", "y", "p"), ("c", "p", "q")),
    "two chains in turn": _made_up(
        ("a1", "x", "p"), ("a2", "p", "q"), ("b1", "y", "r"), ("b2", "r", "s")
    ),
    "one that waits for one far before it": _made_up(
        ("a", "x", "p"), ("b", "p", "q"), ("c", "q", "r"), ("d", "p", "s"), ("e", "r s", "t")
    ),
    "nothing to launch": [],
}


def _random_lists(count: int = 40) -> dict[str, list[Touches]]:
    rng = np.random.default_rng(6)
    lists = {}
    for n in range(count):
        arrays = np.array(list("stuvwxyz"))
        launches = []
        for i in range(rng.integers(2, 9)):
            reads, writes = (frozenset(map(str, rng.choice(arrays, k, False))) for k in (2, 1))
            launches.append(Touches(f"l{i}", reads, writes))
        lists[f"random list {n}"] = launches
    return lists


def conflict(earlier: Touches, later: Touches) -> str | None:
    """Why `later` must wait for `earlier`, in words; None where they may run side by side."""
    for arrays, words in (
        (earlier.writes & later.reads, "reads {}, which {} writes"),
        (earlier.writes & later.writes, "writes {}, which {} writes too"),
        (earlier.reads & later.writes, "overwrites {}, which {} still reads"),
    ):
        if arrays:
            return f"{later.name} " + words.format(min(arrays), earlier.name)
    return None


def fewest(launches: Sequence[Touches]) -> int:
    """The number of groups on the longest chain of launches that wait for each other."""
    level: list[int] = []
    for i, launch in enumerate(launches):
        waits = [level[j] for j in range(i) if conflict(launches[j], launch)]
        level.append(1 + max(waits, default=0))
    return max(level, default=0)


def fault(answer: Callable[[list[Touches]], Any]) -> str | None:
    """What is wrong with a function that groups launches, in a sentence; "" for the starter, None for nothing."""
    questions = {f"a layer at phase {p}": layer_touches(p) for p in ("3", "8b")} | MADE_UP
    for where, launches in (questions | _random_lists()).items():
        try:
            groups = answer(list(launches))
        except Exception as error:  # whatever a learner's function raises
            return f"{where}: your function raises {type(error).__name__}: {error}."
        if groups is None:
            return ""
        wrong = _fault_of(groups, launches)
        if wrong:
            return f"{where}: {wrong}"
    return None


def _fault_of(groups: Any, launches: Sequence[Touches]) -> str | None:
    try:
        placed = [(int(i), at) for at, group in enumerate(groups) for i in group]
    except (TypeError, ValueError):
        return f"expected a list of groups, each a list of indices; got {groups!r}."
    if sorted(i for i, _ in placed) != list(range(len(launches))):
        return f"every index from 0 to {len(launches) - 1} must be in one group; got {groups!r}."
    group_of = dict(placed)
    for j, later in enumerate(launches):
        for i, earlier in enumerate(launches[:j]):
            why = conflict(earlier, later)
            if why and group_of[i] >= group_of[j]:
                how = (
                    "are in one group" if group_of[i] == group_of[j] else "come the wrong way round"
                )
                return f"{earlier.name} and {later.name} {how}, but {why}."
    used = sum(1 for group in groups if len(group))
    if used > fewest(launches):
        return f"nothing runs too early, but in {used} groups; {fewest(launches)} are enough."
    return None
