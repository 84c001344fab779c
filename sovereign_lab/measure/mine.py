"""The learner's own kernels: an edit and how it is launched, those that were kept, and an engine that runs them.

They are kept for the life of a process, beside the registry's variants and never in their place.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from sovereign_lab.devices.device import Source
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Op, Variant, op

DEFAULT_PHASE = "8b"


@dataclass(frozen=True)
class Edit:
    """An edited kernel. `like` is the registry's variant that it stands in for: its geometry and layout apply.

    `threads`, `rows_per_block` and `shared_bytes` (of dynamic shared memory a block) replace the parent's where they
    are given; `grid` is a fixed number of blocks, in place of as many as cover the work, and `cooperative` a launch
    whose blocks are all resident. `line` is the number of the source's first line where it was written: 2 in a
    notebook's cell, behind the magic.
    """

    op: str
    source: str
    like: str
    name: str = "mine"
    threads: int | None = None
    rows_per_block: int | None = None
    grid: int | None = None
    shared_bytes: int | None = None
    cooperative: bool = False
    line: int = 1

    @property
    def parent(self) -> Variant:
        """The variant that it stands in for."""
        return op(self.op).variant(self.like)

    @property
    def text(self) -> str:
        """The source with empty lines before it, so that its lines are counted as where it was written."""
        return "\n" * (self.line - 1) + self.source

    def variant(self) -> Variant:
        """It as a variant of its op: what the engine and the grid are worked out from."""
        given = {f.name: getattr(self.parent, f.name) for f in fields(Variant)}
        shared = self.shared_bytes
        changed = {
            "path": Path(f"{self.name}.cu"),
            "threads": self.threads or self.parent.threads,
            "rows_per_block": self.rows_per_block or self.parent.rows_per_block,
            "shared_bytes": self.parent.shared_bytes if shared is None else lambda args: shared,
            "blocks": self.grid or (None if self.rows_per_block else self.parent.blocks),
            "tiles": None if self.rows_per_block else self.parent.tiles,
            "cooperative": self.cooperative or self.parent.cooperative,
            "teaches": f"edited from {self.like}",
        }
        return Written(**given | changed, text=self.text, called=self.name)


@dataclass(frozen=True)
class Written(Variant):
    """A variant whose source is no file."""

    text: str = ""
    called: str = ""

    @property
    def name(self) -> str:
        """What it was called."""
        return self.called

    @property
    def source(self) -> str:
        """Its text."""
        return self.text


def edit(op_name: str, source: str, like: str | None = None, **launch: object) -> Edit:
    """An Edit of op `op_name`; `like` by name or step ("float4", "3"), by default the op's variant in phase 8b.

    `launch`: the further fields of Edit. Raises LabError for an op, a variant or a name that cannot be, and for a size
    below what a launch can have.
    """
    found = op(op_name)
    made = Edit(op_name, source, find_variant(found, like), **launch)  # type: ignore[arg-type]
    if not re.fullmatch(r"[A-Za-z]\w*", made.name):
        raise LabError(
            f"A kernel's name is letters, digits and underscores, and starts with a letter; got {made.name!r}."
        )
    if made.name in found.variants:
        raise LabError(
            f"{op_name} has a variant {made.name} of its own; choose another name for yours."
        )
    for size in ("threads", "rows_per_block", "grid"):
        value = getattr(made, size)
        if value is not None and value < 1:
            raise LabError(f"{size} is 1 or more; got {value}.")
    if made.shared_bytes is not None and made.shared_bytes < 0:
        raise LabError(f"shared_bytes is 0 or more; got {made.shared_bytes}.")
    return made


def find_variant(found: Op, like: str | None) -> str:
    """A variant's name from its name or step; by default the one of phase 8b. Raises LabError with those there are."""
    if like is None:
        last = list(found.variants)[-1]
        return PHASES[DEFAULT_PHASE].plan.get(found.name, last)
    steps = {v.path.stem.split("_")[0]: name for name, v in found.variants.items()}
    return found.variant(steps.get(like, like)).name


# ---- what was kept ----

_KEPT: dict[tuple[str, str], Edit] = {}


def keep(made: Edit) -> None:
    """Keep an edit under its op and name, in place of an earlier one."""
    _KEPT[made.op, made.name] = made


def kept() -> tuple[Edit, ...]:
    """All that were kept in this process, the oldest first."""
    return tuple(_KEPT.values())


def find_kept(op_name: str, name: str) -> Edit:
    """A kept edit. Raises LabError with the names there are."""
    if (op_name, name) not in _KEPT:
        mine = [n for o, n in _KEPT if o == op_name]
        has = f"kept are {', '.join(mine)}" if mine else "none was kept"
        raise LabError(
            f"No kernel of yours for {op_name} is called {name!r}: {has}. `%%kernel {op_name} --as {name}` keeps one "
            "that is right and safe."
        )
    return _KEPT[op_name, name]


def find_any(op_name: str, name: str) -> Variant | Edit:
    """A variant of the registry, or else a kept edit. Raises LabError as `find_kept` does."""
    variants = op(op_name).variants
    return variants[name] if name in variants else find_kept(op_name, name)


def with_kernels(engine: Engine, change: Mapping[str, str | Variant | Edit]) -> Engine:
    """The engine's model at its phase, with other kernels: by op, a variant, a kept edit's name, or an Edit.

    The weights on the device are shared. Raises LabError for a name that there is not, an op that the phase does not
    launch, a variant that needs a newer GPU, and a kernel that does not compile.
    """
    made = engine.with_phase(engine.phase.id)
    for op_name, chosen in change.items():
        if isinstance(chosen, str):
            chosen = find_any(op_name, chosen)
        check_engine(op_name, engine.phase.id)
        if isinstance(chosen, Edit):
            chosen = chosen.variant()
        else:
            made.check_arch({op_name: chosen})
        source = Source(chosen.source, f"{op_name}/{chosen.path.name}", {"KV": made.kv.kernel_type})
        made.kernels[op_name] = (chosen, made.device.compile(source))
    return made


def check_engine(op_name: str, phase: str) -> None:
    """Raise LabError where an engine at `phase` does not launch an op."""
    if op_name not in PHASES.phase(phase).plan:
        phases = [p.id for p in PHASES.values() if op_name in p.plan]
        raise LabError(
            f"Phase {phase} does not launch {op_name}; choose a phase that does: {', '.join(phases)}."
        )
