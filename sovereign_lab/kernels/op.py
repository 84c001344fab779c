"""What an op is, and a variant of it: the entries of the registry.

An op fixes the `extern "C"` signature, its meaning and a NumPy reference. A variant is a file and its launch
geometry, and the sentence that it teaches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError

Arguments = Mapping[str, Any]  # parameter name -> NumPy array or scalar


@dataclass(frozen=True)
class Variant:
    """One way to compute an op.

    `path` is the kernel's file, `threads` the size of a block. `rows_per_block` counts the op's units of work
    (`Op.units`: rows, elements, heads) that a block takes; None means one block for everything. `shared_bytes`:
    dynamic shared memory a block. `arch`: the least compute capability it needs. `layout`: how it reads Q4_0
    weights, "file" for byte for byte as in the GGUF file. `blocks`: a fixed number of blocks, in place of as many as
    cover the work; `tiles`: how many do, where rows alone do not tell. `cooperative`: a launch whose blocks are all
    resident, for grid.sync(). `rounded`: the op's reference with this variant's own roundings, where it computes in
    less than FP32. `tolerance`: how far an output in FP32 may lie from that, as a share of its norm.
    """

    path: Path
    threads: int
    rows_per_block: int | None
    teaches: str
    shared_bytes: Callable[[Arguments], int] = lambda args: 0
    arch: int = 60
    layout: str = "file"
    blocks: int | None = None
    tiles: Callable[[Arguments], int] | None = None
    cooperative: bool = False
    rounded: Callable[[Arguments], dict[str, np.ndarray]] | None = None
    tolerance: float = 2e-5

    @property
    def name(self) -> str:
        """The file's name without its step: `1_warp_per_row.cu` is "warp_per_row"."""
        return self.path.stem.split("_", 1)[1]

    @property
    def source(self) -> str:
        """The text of its file."""
        return self.path.read_text()


@dataclass(frozen=True)
class Op:
    """What a kernel must compute.

    `outputs`: the parameters that are written. `scratch`: arrays that a launch may write too, and nobody reads
    afterwards. `units(args)`: the number of independent pieces of work, for the grid. `reference(args)`: what the
    outputs must hold afterwards, by name, from the arguments before the launch. `replaces`: the ops that a forward
    pass with this one, which is fused, launches no more.
    """

    name: str
    meaning: str
    outputs: tuple[str, ...]
    units: Callable[[Arguments], int]
    reference: Callable[[Arguments], dict[str, np.ndarray]]
    variants: Mapping[str, Variant]
    replaces: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, *variants: Variant, **facts: Any) -> "Op":
        """An op with its variants under their names; `facts` are the further fields."""
        return cls(name, variants={v.name: v for v in variants}, **facts)

    def variant(self, name: str) -> Variant:
        """A variant by name; raises LabError with the names there are."""
        if name not in self.variants:
            raise LabError(
                f"Op {self.name} has no variant {name!r}; it has {', '.join(self.variants)}."
            )
        return self.variants[name]

    def grid(self, variant: Variant, args: Arguments) -> int:
        """The number of blocks of a launch: the variant's own, or as many as cover the work."""
        if variant.blocks is not None:
            return variant.blocks
        if variant.tiles is not None:
            return variant.tiles(args)
        return (
            1 if variant.rows_per_block is None else -(-self.units(args) // variant.rows_per_block)
        )

    def expected(self, variant: Variant, args: Arguments) -> dict[str, np.ndarray]:
        """What the outputs of a launch of `variant` must hold: the reference, with the variant's own roundings."""
        return (variant.rounded or self.reference)(args)
