"""What a kernel will be on GPUs that are not here: registers, spills, shared memory, occupancy and its limit.

Everything comes from the compiler: no GPU and no driver is asked. The kernel is the same file that runs on the other
devices, compiled with the same options.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from sovereign_lab.devices.device import Source
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import Op, Variant, find_kernel
from sovereign_lab.measure.memory_trace import KINDS, Trace
from sovereign_lab.measure.static import nvrtc
from sovereign_lab.measure.static.nvrtc import Cubin
from sovereign_lab.measure.static.occupancy import (
    CARDS,
    SMS,
    Card,
    Occupancy,
    more_blocks_with,
    occupancy,
)
from sovereign_lab.measure.static.sass import Sass, disassemble
from sovereign_lab.measure.workload import DEFINES

ARCHS = tuple(SMS)
# What an engine compiles its kernels with when it is asked for nothing else: a KV cache in fp16.


@dataclass(frozen=True)
class StaticRow:
    """A kernel on one GPU generation. `cubin` has what the compiler gave; `cards` are the GPUs that it is for.

    `fewer_registers`: with at most so many registers more blocks would fit; None where registers are not the limit.
    """

    cubin: Cubin
    occupancy: Occupancy
    fewer_registers: int | None
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class StaticReport:
    """A kernel, compiled for several GPU generations; renders as text and as HTML.

    `shared_bytes` is the launch's dynamic shared memory, beside which each row's cubin has the static one.
    """

    kernel: str
    threads: int
    shared_bytes: int
    compiler: str
    rows: tuple[StaticRow, ...]
    source: str = field(repr=False)

    def row(self, arch: int) -> StaticRow:
        """The row of a compute capability; raises LabError where the report has none."""
        for row in self.rows:
            if row.cubin.arch == arch:
                return row
        known = ", ".join(str(row.cubin.arch) for row in self.rows)
        raise LabError(f"This report has no sm_{arch}; it has {known}. Name it in `archs`.")

    def sass(self, arch: int) -> Sass:
        """The machine code for one of the report's compute capabilities, beside the source.

        Raises LabError for another one, and where nvdisasm is not installed.
        """
        return disassemble(self.row(arch).cubin, self.source)

    @property
    def title(self) -> str:
        """The kernel and its launch, in a sentence."""
        dynamic = (
            f" and {self.shared_bytes:,} bytes of dynamic shared memory"
            if self.shared_bytes
            else ""
        )
        return f"{self.kernel} in blocks of {self.threads:,} threads{dynamic}, by {self.compiler}"

    @cached_property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """The head and a line for each generation, as text."""
        head = (
            *("arch", "registers", "spilled B", "shared B", "blocks/SM", "warps/SM", "occupancy"),
            *("limited by", "GPUs (blocks at once)"),
        )
        return (head, *(_cells(row, self.shared_bytes) for row in self.rows))

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if 1 <= i <= 6 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in self.table
        ]
        return "\n".join([self.title, *lines, *self._notes()])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "".join(
                f"<{tag} style='text-align:{'right' if 1 <= i <= 6 else 'left'}'>{escape(cell)}</{tag}>"
                for i, cell in enumerate(cells)
            )

        head, *rows = self.table
        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return (
            f"<p>{escape(self.title)}</p><table><thead><tr>{line(head, 'th')}</tr></thead>"
            f"<tbody>{body}</tbody></table>{notes}"
        )

    def _notes(self) -> list[str]:
        notes = [
            f"sm_{row.cubin.arch}: with {row.fewer_registers} registers or fewer, more blocks would fit."
            for row in self.rows
            if row.fewer_registers is not None
        ]
        spilling = [f"sm_{row.cubin.arch}" for row in self.rows if row.cubin.spill_stores]
        if spilling:
            notes.append(
                f"{', '.join(spilling)}: spilled registers go through local memory; each costs a store and a load."
            )
        return notes

    def record(self) -> dict[str, Any]:
        """The whole report as plain values, for JSON; sizes in bytes, occupancy from 0 to 1."""
        return {
            "kernel": self.kernel,
            "threads": self.threads,
            "dynamic_shared_bytes": self.shared_bytes,
            "compiler": self.compiler,
            "archs": [
                {
                    "arch": f"sm_{row.cubin.arch}",
                    "gpus": [asdict(card) for card in row.cards],
                    "registers": row.cubin.registers,
                    "spill_stores": row.cubin.spill_stores,
                    "spill_loads": row.cubin.spill_loads,
                    "stack": row.cubin.stack,
                    "static_shared_bytes": row.cubin.shared,
                    "blocks_per_sm": row.occupancy.blocks,
                    "warps_per_sm": row.occupancy.warps,
                    "occupancy": row.occupancy.share,
                    "limited_by": list(row.occupancy.limited_by),
                    "fewer_registers": row.fewer_registers,
                }
                for row in self.rows
            ],
        }


def _cells(row: StaticRow, dynamic: int) -> tuple[str, ...]:
    held, cubin = row.occupancy, row.cubin
    return (
        f"sm_{cubin.arch}",
        f"{cubin.registers}",
        f"{cubin.spill_stores + cubin.spill_loads}",
        f"{cubin.shared + dynamic:,}",
        f"{held.blocks}",
        f"{held.warps} of {SMS[cubin.arch].warps}",
        f"{held.share:.0%}" if held.blocks else "no launch",
        ", ".join(held.limited_by),
        ", ".join(f"{card.name} ({held.blocks * card.sms:,})" for card in row.cards),
    )


def static_analysis(
    kernel: str | Source,
    threads: int | None = None,
    shared_bytes: int | None = None,
    archs: Sequence[int] | None = None,
) -> StaticReport:
    """Compile a kernel for GPU generations that need not be here, and see what it takes of an SM.

    `kernel`: one of the registry, as "gemv_q4_0:coalesced", or a Source of your own, for which `threads`, the size of
    a block, must be given. `shared_bytes`: dynamic shared memory of a block; a registry kernel's is that of its
    first test case. `archs`: compute capabilities, [89, 90]; by default all of `ARCHS` that the kernel and
    the compiler know.

    Raises LabError where NVRTC is not installed, for an arch without a table, and with the compiler's words where it
    refuses the kernel.
    """
    least = 0
    if isinstance(kernel, str):
        op, variant = find_kernel(kernel)
        source = variant_source(op, variant)
        threads, least = threads or variant.threads, variant.arch
        if shared_bytes is None:
            shared_bytes = variant.shared_bytes(next(cases(op, np.random.default_rng(0))))
    else:
        source = kernel
    if threads is None:
        raise LabError(
            f"{source.name} is not of the registry, so `threads`, the size of a block, must be given."
        )
    if archs is None:
        known = nvrtc.supported_archs()
        archs = [arch for arch in ARCHS if arch >= least and arch in known]
    held_back = [arch for arch in archs if arch < least]
    if held_back:
        raise LabError(f"{source.name} needs sm_{least} or newer; sm_{held_back[0]} was asked for.")
    name = kernel if isinstance(kernel, str) else source.name
    rows = tuple(
        _row(cubin, threads, shared_bytes or 0)
        for cubin in nvrtc.compile_cubins((source, arch) for arch in archs)
    )
    compiler = "NVRTC {}.{}".format(*nvrtc.version())
    return StaticReport(name, threads, shared_bytes or 0, compiler, rows, source.text)


def variant_source(op: Op, variant: Variant) -> Source:
    """A variant as the engine compiles it, with a KV cache in fp16."""
    return Source(variant.source, f"{op.name}/{variant.path.name}", DEFINES)


def _row(cubin: Cubin, threads: int, shared_bytes: int) -> StaticRow:
    facts = (cubin.registers, cubin.shared + shared_bytes, threads, cubin.arch)
    return StaticRow(
        cubin,
        occupancy(*facts),
        more_blocks_with(*facts),
        tuple(card for card in CARDS if card.arch == cubin.arch),
    )


# ---- what the compiler made of the source's accesses ----


@dataclass(frozen=True)
class WidthMismatch:
    """A line whose machine code accesses memory in other widths, in bytes a lane, than the source does when traced.

    `sass` are the widths of its instructions, `traced` those of its requests; either is empty where there are none.
    """

    line: int
    kind: str
    space: str
    sass: tuple[int, ...]
    traced: tuple[int, ...]


def width_mismatches(sass: Sass, traces: Iterable[Trace]) -> list[WidthMismatch]:
    """Where SASS and traced accesses differ in width, by source line, kind ("load", "store", "atomic") and space.

    The traces are taken together, so that a line need not run in each.
    """
    made: dict[tuple[int, str, str], set[int]] = {}
    for row in sass.widths:
        made[row.line, row.kind, row.space] = {width for width, _ in row.widths}
    traced: dict[tuple[int, str, str], set[int]] = {}
    for trace in traces:
        for line, kind, shared, width in traced_widths(trace):
            space = "shared" if shared else "global"
            traced.setdefault((line, KINDS[kind], space), set()).add(width)
    return [
        WidthMismatch(*key, tuple(sorted(made.get(key, ()))), tuple(sorted(traced.get(key, ()))))
        for key in sorted(made.keys() | traced.keys())
        if made.get(key) != traced.get(key)
    ]


def traced_widths(trace: Trace) -> list[tuple[int, int, int, int]]:
    """What occurs in a trace: (line, index of the kind in KINDS, 1 for shared memory, bytes a lane)."""
    table = trace.requests_table
    columns = (table["line"], table["store"], table["shared"], table["bytes"] // table["lanes"])
    return [tuple(row) for row in np.unique(np.stack(columns, axis=1), axis=0).tolist()]
