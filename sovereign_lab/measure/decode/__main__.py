"""The command line of `measure.decode`: print the run, and keep it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sovereign_lab.devices import open_device
from sovereign_lab.errors import LabError
from sovereign_lab.measure.decode import CONTEXTS, PHASES_MEASURED, DecodeRun, run
from sovereign_lab.measure.decode.texts import TOKENS as TEXT_TOKENS
from sovereign_lab.measure.decode.turns import ROUNDS, TEXT_MODELS, TOKENS
from sovereign_lab.measure.peer import llama_cpp


def environment_with(folder: Path, before: dict[str, str]) -> dict[str, str]:
    """`before`, with what finds llama.cpp's build and binding in `folder`, and CUDA's libraries in NVIDIA's wheels."""
    wheels = sorted(
        {
            str(found.parent)
            for place in sys.path
            for library in ("libcublas", "libcudart")
            for found in Path(place).glob(f"nvidia/**/lib/{library}.so.*")
        }
    )

    def path(name: str, *places: str) -> str:
        return os.pathsep.join(filter(None, (*places, before.get(name, ""))))

    here = str(folder)
    return before | {
        "LLAMA_CPP_LIB_PATH": here,
        "PYTHONPATH": path("PYTHONPATH", here),
        "LD_LIBRARY_PATH": path("LD_LIBRARY_PATH", here, *wheels, "/usr/local/cuda/lib64"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line (sys.argv by default), measure, print, record."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description="Decode: every phase, in turn with llama.cpp.")
    parser.add_argument("--device", choices=("cuda", "simt"), default="cuda")
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the run as JSON here")
    parser.add_argument(
        "--peer", type=Path, metavar="FOLDER", help="a build of llama.cpp with its Python binding"
    )
    parser.add_argument(
        "--phase", action="append", help="may be repeated; all measured ones by default"
    )
    parser.add_argument("--context", type=int, action="append", help="may be repeated")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens a measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--text-model", action="append", help="may be repeated; checked, not timed")
    parser.add_argument("--text-tokens", type=int, default=TEXT_TOKENS)
    options = parser.parse_args(given)
    if options.peer is not None and os.environ.get("LLAMA_CPP_LIB_PATH") != str(
        options.peer.resolve()
    ):
        # The loader reads its path when a process starts, and never again.
        changed = environment_with(options.peer.resolve(), dict(os.environ))
        os.execve(
            sys.executable, [sys.executable, "-m", "sovereign_lab.measure.decode", *given], changed
        )
    api, reason = _api(options.peer)

    def keep(so_far: DecodeRun) -> None:
        if options.record:
            options.record.parent.mkdir(parents=True, exist_ok=True)
            so_far.write(options.record)

    measured = run(
        open_device(options.device),
        options.model,
        phases=options.phase or PHASES_MEASURED,
        contexts=options.context or CONTEXTS,
        tokens=options.tokens,
        rounds=options.rounds,
        text_models=options.text_model or TEXT_MODELS,
        text_tokens=options.text_tokens,
        api=api,
        peer_reason=reason,
        progress=True,
        keep=keep,
    )
    print(measured)
    keep(measured)


def _api(folder: Path | None) -> tuple[Any, str | None]:
    """The module llama_cpp, or why there is none: the rest is measured all the same."""
    if folder is None:
        return None, "no build of it was given (--peer)"
    try:
        return llama_cpp(), None
    except LabError as error:
        return None, str(error)


if __name__ == "__main__":
    main()
