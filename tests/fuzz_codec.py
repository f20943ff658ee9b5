"""Fuzzes the codec for a bounded time: ``python tests/fuzz_codec.py --seconds 60``; files are replayed.

atheris drives: libFuzzer's mutations, guided by which branches of the codec an input reaches, from valid
messages on. Exit status 1 and the input, kept as a file, if ``check_bytes`` fails or takes too long.

The codec is imported inside functions: where libFuzzer runs, its import must count branches.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import click

SECONDS_PER_INPUT = 5
"""An input that takes longer is a finding: the longest takes milliseconds."""
LONGEST_INPUT = 32_768
MAX_MEMORY_MIB = 1024
"""Of the whole fuzzer, whose corpus and counters take most of it."""
NUM_SEEDS = 400
FINDINGS = Path("build/fuzz")
"""Where inputs that fail are kept."""
INSTRUMENTED = "--instrumented"


@click.command()
@click.argument("inputs", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", default=60, show_default=True, type=click.IntRange(1), help="How long to fuzz.")
@click.option("--seed", default=1, show_default=True, help="Of the mutations; 0 draws one.")
def main(inputs: tuple[Path, ...], seconds: int, seed: int) -> None:
    """Fuzz the codec with atheris, or check each of INPUTS once."""
    if inputs:
        replay(inputs)
    elif importlib.util.find_spec("atheris") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        click.echo(f"*** SKIPPED: atheris has wheels for Python 3.11 on x86-64 Linux, not for {version} ***")
    else:
        sys.exit(fuzz(seconds, seed))


def replay(inputs: tuple[Path, ...]) -> None:
    """Check each file's bytes; the first failure raises. Needs no atheris."""
    from codec_property import ENTRIES, check_bytes

    for path in inputs:
        data = path.read_bytes()
        entry = ENTRIES[data[0] % len(ENTRIES)].name if data else "nothing"
        click.echo(f"{path}: {len(data)} bytes, as {entry}")
        click.echo("  a valid message" if check_bytes(data) else "  refused")


def fuzz(seconds: int, seed: int) -> int:
    """Run libFuzzer in a process of its own, which it ends itself, and say what it found."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    known = set(FINDINGS.iterdir())
    with tempfile.TemporaryDirectory() as corpus:
        write_seeds(Path(corpus))
        options = [
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-max_len={LONGEST_INPUT}",
            f"-rss_limit_mb={MAX_MEMORY_MIB}",
            f"-artifact_prefix={FINDINGS}/",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        command = [sys.executable, __file__, INSTRUMENTED, *options, corpus]
        status = subprocess.run(command, check=False).returncode
    if status == 0:
        click.echo(f"fuzz: {seconds} s from {NUM_SEEDS} valid messages each way, seed {seed}: nothing found")
        return 0
    for path in sorted(set(FINDINGS.iterdir()) - known):
        click.echo(f"fuzz: FOUND {path}; replay it with: {sys.executable} {__file__} {path}")
    return 1


def write_seeds(corpus: Path) -> None:
    """Valid messages of every kind, each as a file: the same every time."""
    from hypothesis import Phase, given, settings
    from hypothesis import strategies as st

    from acespec.wire import AcceptanceMode, Codec
    from codec_property import MODES, VOCAB_SIZES, input_for
    from wire_messages import cloud_messages, edge_messages

    written = iter(range(10**6))

    @settings(max_examples=NUM_SEEDS, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
    @given(st.sampled_from(VOCAB_SIZES), st.sampled_from(MODES), st.data())
    def write(vocab_size: int, mode: AcceptanceMode, data: st.DataObject) -> None:
        codec = Codec(vocab_size, mode)
        up = codec.encode_edge(data.draw(edge_messages(vocab_size, mode)))
        down = codec.encode_cloud(data.draw(cloud_messages(vocab_size, mode)))
        first = "first" if up.WhichOneof("kind") in ("open", "resume") else "edge"
        for entry, message in ((first, up), ("cloud", down)):
            seed = input_for(entry, vocab_size, mode, message.SerializeToString())
            (corpus / f"{next(written):05d}").write_bytes(seed)

    write()


def run_libfuzzer(options: list[str]) -> None:
    """Fuzz in this process until the time is over or an input fails; never returns."""
    import atheris

    with atheris.instrument_imports(include=["acespec.wire"]):
        from codec_property import check_bytes

    def one_input(data: bytes) -> None:
        check_bytes(data)

    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == [INSTRUMENTED]:
        run_libfuzzer(sys.argv[2:])
    else:
        main()
