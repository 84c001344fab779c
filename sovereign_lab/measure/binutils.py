"""What the tools of binutils know of a kernel's library: its lines and its symbols."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from sovereign_lab.errors import LabError


def run_tool(tool: str, options: list[str], text: str, purpose: str) -> str:
    """What `tool`, or LLVM's of that name, prints for `text`. `purpose` begins the LabError where there is none."""
    found = shutil.which(tool) or shutil.which(f"llvm-{tool}")
    if found is None:
        raise LabError(f"{purpose} {tool}: install binutils (Debian: apt install binutils).")
    done = subprocess.run([found, *options], input=text, capture_output=True, text=True, check=True)
    return done.stdout


def inlined_frames(library: Path, addresses: Iterable[int], purpose: str) -> list[str]:
    """addr2line's frames of each address, the innermost first; raises what `run_tool` does."""
    asked = "\n".join(f"{a:#x}" for a in addresses)
    out = run_tool("addr2line", ["-a", "-i", "-e", str(library)], asked, purpose)
    return re.split(r"^0x[0-9a-f]+\n", out, flags=re.M)[1:]
