"""Starts `tenure server --ephemeral`: a Kubernetes API server for tests, which ends with this process."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sysconfig
from typing import Sequence

__all__ = ["Server", "binary"]

#: Time until a server that prints nothing counts as failed, in seconds.
START_TIMEOUT = 60.0


def binary() -> str:
    """Returns the path of the command `tenure`.

    The file of `$TENURE_BINARY` comes first, then the file that this package has installed, then the PATH.

    Raises FileNotFoundError if there is none.
    """
    given = os.environ.get("TENURE_BINARY")
    if given:
        return given
    user = f"{os.name}_user"
    for scheme in (None, user if user in sysconfig.get_scheme_names() else None):
        scripts = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
        path = os.path.join(scripts, "tenure")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("tenure")
    if path is None:
        raise FileNotFoundError("the command tenure is not installed; set TENURE_BINARY to its path")
    return path


class Server:
    """A Kubernetes API server with its data in memory, on a free port of loopback.

    It ends with `stop()`, at the end of a `with` block, or when this process ends, even if it is killed. Its messages
    go to standard error.
    """

    #: The kubeconfig file of its administrator.
    kubeconfig: str

    def __init__(self, args: Sequence[str] = (), timeout: float = START_TIMEOUT) -> None:
        """Starts a server with additional flags of `tenure server`, and waits until it is ready."""
        command = [binary(), "server", "--ephemeral", *args]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], timeout)
        # The server writes the whole line with one call.
        line = out.readline() if ready else b""
        if not line.endswith(b"\n"):
            reason = "it ended" if ready else f"not ready after {timeout:g} s"
            self.stop()
            raise RuntimeError(f"cannot start {' '.join(command)}: {reason}; its messages are on standard error")
        self.kubeconfig = os.fsdecode(line.rstrip(b"\n"))

    def stop(self) -> None:
        """Ends the server, and waits until it has removed its files."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
