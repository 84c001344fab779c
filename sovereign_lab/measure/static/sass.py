"""What the GPU really executes: a cubin's machine code (SASS) by source line, and how wide its memory accesses are.

nvdisasm, NVIDIA's disassembler, prints it with the line table that `nvrtc.compile_cubin` has put in.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from sovereign_lab.errors import LabError
from sovereign_lab.measure.static.nvrtc import Cubin, find_program

# What the first part of an opcode does: (kind, space). LDGSTS is cp.async: it loads, and stores what came by itself.
_MEANING = {
    "LDG": ("load", "global"),
    "LD": ("load", "generic"),
    "LDS": ("load", "shared"),
    "LDSM": ("load", "shared"),
    "LDL": ("load", "local"),
    "LDGSTS": ("load", "global"),
    "STG": ("store", "global"),
    "ST": ("store", "generic"),
    "STS": ("store", "shared"),
    "STL": ("store", "local"),
    "ATOM": ("atomic", "generic"),
    "ATOMG": ("atomic", "global"),
    "RED": ("atomic", "global"),
    "REDG": ("atomic", "global"),
    "ATOMS": ("atomic", "shared"),
    "SHFL": ("shuffle", "warp"),
    "VOTE": ("vote", "warp"),
    "MATCH": ("vote", "warp"),
    "REDUX": ("reduction", "warp"),
    "BAR": ("barrier", "block"),
    "HMMA": ("matrix", "warp"),
    "IMMA": ("matrix", "warp"),
}
_WITH_WIDTH = ("load", "store", "atomic")
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "F64": 8, "128": 16}

_PLACE = re.compile(r'//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_OPCODE = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. `line` is the kernel's own source line, 0 where the line table names none.

    `kind` and `space` say what it does to memory or between threads ("load", "global"; "shuffle", "warp"), and are
    empty for all else. `width` is in bytes a lane, 0 where there is none.
    """

    offset: int
    line: int
    opcode: str
    text: str
    kind: str
    space: str
    width: int


@dataclass(frozen=True)
class LineWidths:
    """The widths, in bytes a lane, of one line's accesses of one kind to one space: how many instructions of each."""

    line: int
    kind: str
    space: str
    widths: tuple[tuple[int, int], ...]  # (width, instructions), narrow ones first


@dataclass(frozen=True)
class Sass:
    """A kernel's machine code beside its source; renders as text and as HTML."""

    kernel: str
    arch: int
    source: str = field(repr=False)
    instructions: tuple[Instruction, ...] = field(repr=False)

    @cached_property
    def by_line(self) -> dict[int, tuple[Instruction, ...]]:
        """The instructions of each source line that has any, in the order of the code."""
        lines: dict[int, list[Instruction]] = {}
        for instruction in self.instructions:
            lines.setdefault(instruction.line, []).append(instruction)
        return {line: tuple(lines[line]) for line in sorted(lines)}

    @cached_property
    def widths(self) -> list[LineWidths]:
        """How wide each line's memory accesses are, by line, loads before stores."""
        counted: dict[tuple[int, str, str], dict[int, int]] = {}
        for i in self.instructions:
            if i.kind in _WITH_WIDTH:
                widths = counted.setdefault((i.line, i.kind, i.space), {})
                widths[i.width] = widths.get(i.width, 0) + 1
        return [
            LineWidths(*key, tuple(sorted(counted[key].items())))
            for key in sorted(
                counted, key=lambda k: (k[0], ("load", "store", "atomic").index(k[1]))
            )
        ]

    def counts(self, kind: str, space: str) -> dict[int, int]:
        """Instructions of a kind to a space, by their width in bytes a lane."""
        found: dict[int, int] = {}
        for i in self.instructions:
            if (i.kind, i.space) == (kind, space):
                found[i.width] = found.get(i.width, 0) + 1
        return dict(sorted(found.items()))

    def record(self) -> list[dict[str, Any]]:
        """Each instruction as plain values, for JSON; `width` in bytes a lane."""
        return [asdict(instruction) for instruction in self.instructions]

    def __str__(self) -> str:
        rows = [f"{self.kernel} for sm_{self.arch}: {len(self.instructions)} instructions", ""]
        for number, text in enumerate(self.source.splitlines(), 1):
            count = len(self.by_line.get(number, ()))
            rows.append(f"{count or '':>5} {number:>4} {text}".rstrip())
            rows += [f"{'':>10}   | {what}" for what in summary(self.by_line.get(number, ()))]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        rows = []
        for number, text in enumerate(self.source.splitlines(), 1):
            mine = self.by_line.get(number, ())
            rows.append(
                f"<tr><td style='text-align:right'>{len(mine) or ''}</td>"
                f"<td style='text-align:right'>{number}</td>"
                f"<td style='text-align:left'><code style='white-space:pre'>{escape(text)}</code></td>"
                f"<td style='text-align:left'><code>{'<br>'.join(summary(mine))}</code></td></tr>"
            )
        return (
            f"<table><caption>{escape(self.kernel)} for sm_{self.arch}: machine instructions by source line</caption>"
            "<tr><th>SASS</th><th>line</th><th>source</th><th>memory, shuffles, barriers</th></tr>"
            + "".join(rows)
            + "</table>"
        )


def why_no_sass() -> str | None:
    """Why SASS cannot be shown, in a sentence that says what to do; None where it can."""
    if find_program("nvdisasm") is None:
        return (
            "NVIDIA's disassembler nvdisasm is not installed: pip install 'sovereign-lab[static]' "
            "(5 MB, Linux and Windows; it does not exist for macOS)."
        )
    return None


def disassemble(cubin: Cubin, source: str) -> Sass:
    """The machine code of a compiled kernel, by the lines of its source. Takes about 0.5 s.

    An instruction from an inlined helper of another file counts for the line that calls it. Raises LabError where
    nvdisasm is not installed or refuses.
    """
    program = find_program("nvdisasm")
    if program is None:
        raise LabError(why_no_sass())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin.code)
        run = subprocess.run(
            [program, "--print-code", "--print-line-info-inline", "--no-dataflow", file],
            capture_output=True,
            text=True,
        )
    if run.returncode:
        raise LabError(f"nvdisasm cannot read {cubin.kernel} for sm_{cubin.arch}: {run.stderr}")
    return Sass(cubin.kernel, cubin.arch, source, tuple(_parse(run.stdout, cubin.file)))


def _parse(listing: str, file: str) -> Iterable[Instruction]:
    """The instructions of a listing; the line of each is that of the first of its frames that lies in `file`."""
    line, frames = 0, []
    for row in listing.splitlines():
        place = _PLACE.search(row)
        if place:
            frames.append((place[1], int(place[2])))
            continue
        if frames:
            line = next((n for name, n in frames if _is_file(name, file)), 0)
            frames = []
        instruction = _INSTRUCTION.search(row)
        if instruction and instruction[2] != "NOP":  # these only fill up the end of the code
            yield _instruction(int(instruction[1], 16), line, instruction[2])


def _is_file(path: str, file: str) -> bool:
    """Whether the line table's path is that of `file`: NVRTC puts the current folder before the name it was given."""
    path = path.replace("\\", "/")
    return path == file or path.endswith("/" + file)


def _instruction(offset: int, line: int, text: str) -> Instruction:
    opcode = _OPCODE.match(text)
    if opcode is None:
        raise LabError(f"nvdisasm's line {text!r} is not understood; expected an opcode in it.")
    first, *modifiers = opcode[1].split(".")
    never = text.startswith("@!PT ")  # a predicate that is always false: filling between others
    kind, space = ("", "") if never else _MEANING.get(first, ("", ""))
    width = 0
    if (
        kind and first == "LDSM"
    ):  # so many 8 x 8 matrices of halves, of each of which a lane gets 4 bytes
        width = 4 * next((int(m) for m in modifiers if m in ("2", "4")), 1)
    elif kind in _WITH_WIDTH:
        width = next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
    return Instruction(offset, line, opcode[1], text, kind, space, width)


def summary(instructions: Iterable[Instruction]) -> list[str]:
    """What matters of a line's instructions, with how often each stands there: `LDG.E.U8 x 4`."""
    counted: dict[str, int] = {}
    for i in instructions:
        if i.kind:
            counted[i.opcode] = counted.get(i.opcode, 0) + 1
    return [opcode if n == 1 else f"{opcode} x {n}" for opcode, n in counted.items()]
