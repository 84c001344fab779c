"""Texts of one or two phases while they are generated, token by token in turn; another thread can stop them."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES, Engine, Generation
from sovereign_lab.engine.forward import Call
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.models.model import Model

# Two panels may have been given one device. A device takes one thread at a time: what it captures is everybody's.
_locks: WeakKeyDictionary[Device, threading.RLock] = WeakKeyDictionary()


class Stopped(Exception):
    """Raised before the next token, once `PanelEngine.stopped` is set."""


class PanelEngine(Engine):
    """An engine for a thread of its own: it looks before every pass whether to go on, and waits for its device.

    `like`: another one of this model and device, whose weights it shares. `forwards`: passes with logits so far;
    `prefill_seconds`: what the last prefill took.
    """

    def __init__(
        self, model: Model, device: Device, phase: str, like: "PanelEngine | None" = None
    ) -> None:
        self.stopped = threading.Event()
        self.forwards, self.prefill_seconds = 0, 0.0
        self._turn = _locks.setdefault(device, threading.RLock())
        with self._turn:
            super().__init__(
                model,
                device,
                phase,
                weights=like.weights if like else None,
                split=like.split if like else None,
                tiles=like.tiles if like else None,
            )

    def run(self, calls: Sequence[Call]) -> None:
        if self.stopped.is_set():
            raise Stopped
        with self._turn:
            super().run(calls)
        self.forwards += 1

    def launch_all(self, calls: Sequence[Call]) -> None:
        if self.stopped.is_set():
            raise Stopped
        with self._turn:
            super().launch_all(calls)

    def prefill(self, ids: Sequence[int], given: int, kv: KVCache | None = None) -> float | None:
        start = time.perf_counter()
        rate = super().prefill(ids, given, kv)
        self.prefill_seconds = time.perf_counter() - start
        self.forwards = 0
        return rate


@dataclass(frozen=True)
class Request:
    """What is asked for, of every column alike; see `Engine.stream`. `stop` "" is none."""

    prompt: str
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 64
    stop: str = ""


@dataclass(frozen=True)
class Column:
    """A phase's text so far. `seconds`: of decode alone, for `forwards` passes. `result` once the text has ended."""

    phase: str
    prompt: str
    text: str = ""
    forwards: int = 0
    seconds: float = 0.0
    result: Generation | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Decode alone; of the whole text once it has ended, None before the first token."""
        if self.result is not None:
            return self.result.tokens_per_second
        return self.forwards / self.seconds if self.seconds > 0 else None


def stream_columns(
    engines: Sequence[PanelEngine], request: Request
) -> Iterator[tuple[Column, ...]]:
    """All columns after every step of one: first empty, last with their results.

    Columns take turns, a piece of text each, so that they grow side by side; each has a clock of its own. Raises
    LabError for what `Engine.stream` refuses before anything is yielded, and `Stopped`.
    """
    stops = (request.stop,) if request.stop else ()
    streams = [
        engine.stream(
            request.prompt, request.max_tokens, request.temperature, request.seed, stop=stops, top_p=request.top_p
        )
        for engine in engines
    ]  # fmt: skip
    columns = [Column(engine.phase.id, request.prompt) for engine in engines]
    yield tuple(columns)
    while any(column.result is None for column in columns):
        for i, (engine, stream) in enumerate(zip(engines, streams, strict=True)):
            if columns[i].result is not None:
                continue
            engine.prefill_seconds = 0.0
            start = time.perf_counter()
            piece = next(stream, None)
            seconds = time.perf_counter() - start - engine.prefill_seconds
            columns[i] = replace(
                columns[i],
                text=columns[i].text + (piece or ""),
                forwards=engine.forwards,
                seconds=columns[i].seconds + seconds,
                result=stream.result if piece is None else None,
            )
            yield tuple(columns)


def comparison(columns: Sequence[Column], temperature: float) -> str:
    """Whether two columns hold the same text, in a sentence or two; "" for one column."""
    if len(columns) < 2:
        return ""
    first, second = columns
    # Of texts that were stopped, what both have.
    ended = first.result is not None and second.result is not None
    length = min(len(first.text), len(second.text))
    at = next((i for i in range(length) if first.text[i] != second.text[i]), None)
    if at is None and ended and len(first.text) != len(second.text):
        at = length
    if at is None:
        return "The texts are equal." if ended else f"Equal as far as both go: {length} characters."
    said = f"The texts differ from character {at + 1} on."
    if temperature > 0 and len({"sample" in PHASES[c.phase].plan for c in columns}) > 1:
        said += (
            " One phase draws on the host and the other on the device: the same distribution, but for a seed another "
            "text. At temperature 0 both take the likeliest token."
        )
    return said


WHY = {"length": "max tokens reached", "context": "the context is full"}


def ended(column: Column) -> str:
    """Why a column's text ended; "" while it has not."""
    if column.result is None:
        return ""
    if column.result.stop is not None:
        return f"stop string {column.result.stop!r}"
    return WHY.get(column.result.finish_reason, "the model ended its text")


def speed(column: Column, device: Device) -> str:
    """Tokens a second so far, and what they are worth: a CPU's time is never shown as if it were a GPU's."""
    rate = column.tokens_per_second
    if rate is None:
        return ""
    properties = device.properties
    where = (
        "SIMT device: time of a CPU, no GPU's"
        if properties.kind == "simt"
        else f"decode alone, {properties.name}"
    )
    why = ended(column)
    return f"{rate:.1f} tok/s ({where}), {column.forwards} passes" + (f"; {why}" if why else "")
