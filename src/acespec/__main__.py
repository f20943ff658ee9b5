"""``python -m acespec``: the command line without its launcher on PATH."""

from __future__ import annotations

from acespec.cli import main

main()
