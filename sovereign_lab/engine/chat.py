"""The prompt of a chat, from the template in the model's file: a program by a stranger.

Jinja2's sandbox keeps it from reaching Python, but not from running for ever or filling the memory. So it runs
in a process of its own with limits on both. This file is that process's program as well.
"""

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sovereign_lab.errors import LabError

if TYPE_CHECKING:
    from sovereign_lab.models.tokenizer import Tokenizer

MAX_SECONDS = 1  # of processor time; real templates take milliseconds
MAX_BYTES = 256 << 20
MAX_CHARACTERS = 1_000_000
START_SECONDS = 120  # for all of it, on a machine that is very busy

Message = Mapping[str, str]


def render(tokenizer: "Tokenizer", messages: Sequence[Message]) -> str:
    """The prompt for `messages` ({"role": ..., "content": ...} each), ready for the answer.

    Raises LabError for messages of another form, where the model has no template, and for a template that
    refuses the messages, reaches for Python's internals, or takes too long, too much memory or text.
    """
    _check(messages)
    try:
        process = subprocess.run(
            [sys.executable, "-P", __file__],
            input=pickle.dumps((tokenizer, [dict(message) for message in messages])),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            timeout=START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _too_much(f"{START_SECONDS} s") from None
    if process.returncode == -signal.SIGXCPU:
        raise _too_much(f"{MAX_SECONDS} s of processor time")
    if process.returncode:
        raise LabError(
            f"The process for the model's chat template ended with status {process.returncode}: "
            + (process.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        )
    prompt, refusal = pickle.loads(process.stdout)
    if refusal is not None:
        raise LabError(refusal)
    return prompt


def _check(messages: Sequence[Message]) -> None:
    if isinstance(messages, str) or not messages:
        raise LabError(f"A chat is a list of at least one message; got {messages!r}.")
    for message in messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise LabError(
                f'A message of a chat is {{"role": text, "content": text}}; got {message!r}.'
            )


def _too_much(limit: str) -> LabError:
    return LabError(
        f"The model's chat template takes more than {limit}: it is not run; use a plain prompt."
    )


def _limit_this_process() -> None:
    """From here on: a second of processor time, and so much more memory."""
    import resource

    seconds = math.ceil(time.process_time()) + MAX_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with contextlib.suppress(OSError, ValueError):  # macOS limits no memory
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer(tokenizer: "Tokenizer", messages: list[Message]) -> tuple[str | None, str | None]:
    """(prompt, None), or (None, why it is refused)."""
    try:
        prompt = tokenizer.chat_prompt(messages)
    except LabError as error:
        return None, str(error)
    except MemoryError:
        return None, str(_too_much(f"{MAX_BYTES >> 20} MiB of memory"))
    except Exception as error:  # what a stranger's program can raise has no end
        return None, f"The model's chat template fails: {type(error).__name__}: {error}"
    if len(prompt) > MAX_CHARACTERS:
        return None, str(_too_much(f"{MAX_CHARACTERS:,} characters"))
    return prompt, None


if __name__ == "__main__":
    given = pickle.load(sys.stdin.buffer)
    _limit_this_process()
    sys.stdout.buffer.write(pickle.dumps(_answer(*given)))
