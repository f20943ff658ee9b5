"""Services as processes of their own: started, awaited, and stopped whatever happens."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from typing import IO

from acespec.errors import AcespecError

READY = re.compile(r"ready on (\S+:\d+)")
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0


def acespec_command(*arguments: str, module: str = "acespec") -> list[str]:
    """The command line of ``acespec ARGUMENTS``, or of another module, with this very interpreter."""
    return [sys.executable, "-m", module, *arguments]


async def run_to_end(*arguments: str) -> None:
    """Run ``acespec ARGUMENTS`` with this terminal. Raises ``AcespecError`` if it fails."""
    process = await asyncio.create_subprocess_exec(*acespec_command(*arguments))
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        await _stop(process)
        raise
    if status != 0:
        raise AcespecError(f"'acespec {' '.join(arguments)}' failed; what it said stands above")


class Service:
    """``acespec ARGUMENTS``, or another module, as a process: a context manager that yields it ready.

    The command must write a line with ``ready on HOST:PORT`` to standard output. Leaving the block ends the
    process: SIGTERM, and after ten seconds SIGKILL.
    """

    def __init__(self, *arguments: str, module: str = "acespec") -> None:
        self._command = acespec_command(*arguments, module=module)
        self._name = " ".join([module, *arguments[:1]])
        self.process: asyncio.subprocess.Process | None = None
        self._errors: IO[str] | None = None
        self.address = ""

    async def __aenter__(self) -> Service:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed in __aexit__
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops its services
        )
        try:
            self.address = await asyncio.wait_for(self._ready(), READY_TIMEOUT_S)
        except asyncio.TimeoutError:
            await self._close()
            raise AcespecError(
                f"'{self._name}' was not ready after {READY_TIMEOUT_S:g} s; try it by itself"
            ) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def line(self) -> str:
        """The next line of the service's standard output, waited for without end.

        Raises ``AcespecError`` with the last thing it said if the service has ended.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            raise AcespecError(f"'{self._name}' ended: {self._last_words()}")
        return line.decode()

    async def _ready(self) -> str:
        while True:
            match = READY.search(await self.line())
            if match is not None:
                return match[1]

    def _last_words(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1].removeprefix("acespec: error: ") if lines else "it said nothing"

    async def _close(self) -> None:
        if self.process is not None:
            await _stop(self.process)
        if self._errors is not None:
            self._errors.close()


def paced_verifier(target: str, threads: int, pace_forward_ms: float | None) -> Service:
    """``acespec serve`` on a free port, each forward as slow as is wanted at least."""
    pace = [] if pace_forward_ms is None else ["--pace-forward-ms", f"{pace_forward_ms:g}"]
    return Service("serve", "--model", target, "--port", "0", "--threads", str(threads), *pace)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End ``process``; nothing it does may keep it alive."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), STOP_TIMEOUT_S)
    except (asyncio.TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()
