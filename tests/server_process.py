"""A server as a process on the loopback, which tests may kill and start again on its port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

READY = re.compile(r"ready on 127\.0\.0\.1:(\d+)")
READY_TIMEOUT_S = 120.0

Command = Callable[[int], list[str]]
"""The command line of a server on a port; 0 picks one. It must print ``ready on 127.0.0.1:PORT``."""


class ServerProcess:
    """An asynchronous context manager that yields itself, ready; leaving it kills the process."""

    def __init__(self, command: Command) -> None:
        self.port = 0
        self.num_starts = 0
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> ServerProcess:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __aexit__
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        assert self._errors is not None
        self._errors.close()

    async def start(self) -> None:
        """Start it, on the port it had before, and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command(self.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},  # as under 'acespec serve'
        )
        self.num_starts += 1
        self.port = await asyncio.wait_for(self._ready(self._process), READY_TIMEOUT_S)

    async def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode

    def status(self) -> str:
        """What proc(5) says of it in ``status``."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/status").read_text()

    @property
    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        (line,) = (line for line in self.status().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def errors(self) -> str:
        """What it wrote to standard error so far."""
        assert self._errors is not None
        self._errors.seek(0)
        return self._errors.read().decode()

    async def _ready(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            match = READY.search(line.decode())
            if match is not None:
                return int(match[1])
        await process.wait()
        raise AssertionError(f"the server ended with {process.returncode}: {self.errors()}")
