"""TinyLlama-1.1B-Chat (Apache-2.0) in Q4_0, downloaded through `huggingface_hub` into its cache."""

import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sovereign_lab.errors import LabError
from sovereign_lab.models.cache import unwritable
from sovereign_lab.models.gguf_file import open_gguf

REPOSITORY = "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF"
FILE = "tinyllama-1.1b-chat-v1.0.Q4_0.gguf"
DESCRIPTION = "TinyLlama-1.1B-Chat v1.0 in Q4_0 (Apache-2.0), 638 MB; needs sovereign-lab[hub]"
WHERE = f"Hugging Face, {REPOSITORY}"


class _NoBar(tqdm):
    """What huggingface_hub is given where no progress is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"disable": True})


def present() -> Path | None:
    """The file in the Hugging Face cache, None where it is yet to be downloaded."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(REPOSITORY, FILE)
    return Path(found) if isinstance(found, str) else None


def make(progress: bool = False) -> Path:
    """Download the file, honouring HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE; check its header."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise LabError(
            "tinyllama-1.1b comes through huggingface_hub, which is not installed; "
            "run: pip install 'sovereign-lab[hub]'"
        ) from None
    try:
        path = hf_hub_download(
            REPOSITORY,
            FILE,
            # The library reads HF_ENDPOINT once, at its import; a notebook may set it later.
            endpoint=os.environ.get("HF_ENDPOINT"),
            tqdm_class=tqdm if progress else _NoBar,
        )
    # Its HTTP client, and with it the exceptions that come through, differ from version to version.
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise unwritable(Path(FILE), error) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LabError(
            f"{FILE} could not be downloaded from {WHERE}: {reason} Check the network, or set "
            "HF_ENDPOINT to a mirror, or give the path of a GGUF file that you have"
        ) from error
    open_gguf(path)
    return Path(path)
