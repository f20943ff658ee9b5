# What this project uses of Optimum's command line, which ships no types.
from argparse import ArgumentParser, Namespace

class CommandInfo:
    def __init__(self, name: str, help: str) -> None: ...

class BaseOptimumCLICommand:
    COMMAND: CommandInfo
    args: Namespace | None
    @staticmethod
    def parse_args(parser: ArgumentParser) -> None: ...
    def run(self) -> None: ...
