"""Controls of a panel: what the page shows, and what a value of each may be. A page can send anything."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sovereign_lab.errors import LabError

Values = Mapping[str, Any]  # control -> value


@dataclass(frozen=True)
class Slider:
    """A whole number from `min` to `max`; `unit` stands behind it."""

    name: str
    label: str
    min: int
    max: int
    step: int = 1
    unit: str = ""
    help: str = ""
    kind: ClassVar[str] = "slider"

    def settle(self, value: Any) -> int:
        """The nearest value that there is. Raises LabError for what is no number."""
        if not _is_number(value):
            raise LabError(
                f"{self.label} is a number from {self.min:,} to {self.max:,}; got {value!r}."
            )
        return int(min(max(round(value), self.min), self.max))


@dataclass(frozen=True)
class Choice:
    """One of `options`: (value, label) each. `steps`: as a slider from the first to the last, not as a list.

    `when`: the toggle that must be on for the page to show it.
    """

    name: str
    label: str
    options: Sequence[tuple[str, str]]
    steps: bool = False
    when: str = ""
    help: str = ""

    @property
    def kind(self) -> str:
        """What the page makes of it."""
        return "steps" if self.steps else "choice"

    def settle(self, value: Any) -> str:
        """The value. Raises LabError for one that is not among the options."""
        known = [name for name, _ in self.options]
        if value not in known:
            raise LabError(f"{self.label} is one of {', '.join(known)}; got {value!r}.")
        return str(value)


@dataclass(frozen=True)
class Number:
    """A number that is typed; whether it is in its range is the business of whoever uses it."""

    name: str
    label: str
    min: float | None = None
    max: float | None = None
    step: float = 1
    whole: bool = False
    help: str = ""
    kind: ClassVar[str] = "number"

    def settle(self, value: Any) -> float:
        """The value. Raises LabError for none, and for a fraction where it counts something."""
        if not _is_number(value):
            raise LabError(f"{self.label} is a number; the field is empty or holds something else.")
        if not self.whole:
            return float(value)
        if value != int(value):
            raise LabError(f"{self.label} is a whole number; got {value:g}.")
        return int(value)


@dataclass(frozen=True)
class Text:
    """A text of so many lines."""

    name: str
    label: str
    lines: int = 1
    help: str = ""
    kind: ClassVar[str] = "text"

    def settle(self, value: Any) -> str:
        """The text as it is. Raises LabError for what is none."""
        if not isinstance(value, str):
            raise LabError(f"{self.label} is a text; got {type(value).__name__}.")
        return value


@dataclass(frozen=True)
class Toggle:
    """On or off."""

    name: str
    label: str
    help: str = ""
    kind: ClassVar[str] = "toggle"

    def settle(self, value: Any) -> bool:
        """The value. Raises LabError for what is neither true nor false."""
        if not isinstance(value, bool):
            raise LabError(f"{self.label} is on or off; got {value!r}.")
        return value


Control = Slider | Choice | Number | Text | Toggle


def spec(control: Control) -> dict[str, Any]:
    """A control as the page takes it."""
    return asdict(control) | {"kind": control.kind}


def settled(controls: Sequence[Control], values: Values) -> dict[str, Any]:
    """`values` as the controls allow them: sliders moved into their range. Raises LabError as `settle` does."""
    return {control.name: control.settle(values.get(control.name)) for control in controls}


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and abs(value) <= sys.float_info.max  # nor NaN
