"""What a check says, and the report that all of them make."""

import io
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

State = Literal["works", "note", "broken"]
_COLOURS: dict[State, str] = {"works": "green", "note": "yellow", "broken": "red"}
_PLACES = {"cuda": "the GPU", "simt": "the CPU (SIMT device)"}

# What to do about a failure that none of the checks knows.
TELL_US = "Report this, with what `sovereign-lab doctor --json` prints."


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    `state`: "works"; "note": not there, or unusual, and the lab runs without; "broken". `todo` is the one
    thing to do about the last two, empty where it works.
    """

    name: str
    state: State
    found: str
    todo: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """Every check, and the devices ("cuda", "simt") that ran a kernel right. Shows as a table."""

    checks: tuple[Check, ...]
    devices: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the lab can run on some device."""
        return bool(self.devices)

    def record(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        checks = [asdict(check) for check in self.checks]
        return {"ok": self.ok, "devices": list(self.devices), "checks": checks}

    def __rich__(self) -> Group:
        table = Table(title="Sovereign Lab on this machine", title_justify="left")
        for heading in ("what", "state", "found", "what to do"):
            table.add_column(heading, overflow="fold")
        for check in self.checks:
            state = f"[{_COLOURS[check.state]}]{check.state}[/]"
            table.add_row(check.name, state, escape(check.found), escape(check.todo))
        where = " and ".join(_PLACES[device] for device in self.devices)
        verdict = f"The lab runs here, on {where}." if self.ok else "The lab cannot run here yet."
        return Group(table, verdict)

    def __repr__(self) -> str:
        console = Console(file=io.StringIO(), width=110, highlight=False)
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rstrip()
