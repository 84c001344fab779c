"""A JupyterLab server for one purpose: a free port, a token, settings of its own, and nothing of the user's."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sovereign_lab.errors import LabError

START_SECONDS = 60
# Asks the network for news at each start, and offers what the tests must not press.
DISABLED = (
    "@jupyterlab/apputils-extension:announcements",
    "@jupyterlab/extensionmanager-extension",
)


@dataclass(frozen=True)
class Server:
    """A running server: `url` ends in a slash, `folder` is what it serves."""

    url: str
    token: str
    folder: Path

    def page(self, notebook: str, workspace: str) -> str:
        """The address that opens `notebook`, relative to `folder`, in a workspace that remembers nothing."""
        return f"{self.url}lab/workspaces/{workspace}/tree/{notebook}?token={self.token}&reset"


@contextmanager
def jupyterlab(
    folder: Path, scratch: Path, environment: dict[str, str], application: str = "jupyterlab"
) -> Iterator[Server]:
    """JupyterLab on `folder`; its configuration, settings, workspaces and log lie in `scratch`, which is made.

    `environment` is added to this process's, for the server and its kernels. `application` is a module to run in
    JupyterLab's place. Raises LabError, with the end of the log, where the server does not start.
    """
    folders = {
        "JUPYTER_CONFIG_DIR": scratch / "config",
        "JUPYTER_DATA_DIR": scratch / "data",
        "JUPYTER_RUNTIME_DIR": scratch / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": scratch / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": scratch / "workspaces",
        "IPYTHONDIR": scratch / "ipython",
    }
    for place in folders.values():
        place.mkdir(parents=True, exist_ok=True)
    labconfig = scratch / "config" / "labconfig"
    labconfig.mkdir(exist_ok=True)
    disabled = {"disabledExtensions": dict.fromkeys(DISABLED, True)}
    (labconfig / "page_config.json").write_text(json.dumps(disabled))
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", application, "--no-browser", "--port=0", "--port-retries=0"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    command += ["--expose-app-in-browser", "--LabApp.extension_manager=readonly"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    variables = {name: str(place) for name, place in folders.items()}
    log = scratch / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | environment | variables, stdout=out, stderr=out, cwd=folder
        )
    try:
        yield Server(_url(process, scratch / "runtime", log), token, folder)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[Any], runtime: Path, log: Path) -> str:
    """The address from the file that the server writes once it listens."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return str(json.loads(file.read_text())["url"])
            except ValueError:  # half written
                pass
        time.sleep(0.05)
    end = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    raise LabError(f"JupyterLab did not start within {START_SECONDS} s; the end of its log:\n{end}")
