"""The options of ``acespec serve``. Each is also a key of its configuration file and a variable.

Declared here and nowhere else; ``serve_settings`` makes of their values what the server takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from acespec.cloud_verifier.config_file import use_config
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.option_groups import OptionGroup, Size, Whole, all_options
from acespec.cloud_verifier.security_settings import AUTHENTICATIONS, JWT_ALGORITHMS
from acespec.cloud_verifier.serve_settings import NO_RACE
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.logs import LOG_FORMATS
from acespec.options import THREADS, FiniteRange
from acespec.wire import Eagerness

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "ACESPEC_SERVE"
"""What the variables' names begin with."""

COUNT = Whole(1)
PORT = Whole(0, 65535)
FILE = click.Path(path_type=Path, dir_okay=False)
MS = {"type": FiniteRange(0.0, 600_000.0), "metavar": "MS"}
SECONDS = {"type": FiniteRange(0.0, 1e6, min_open=True), "metavar": "SECONDS"}
SECONDS_OR_NONE = {"type": FiniteRange(0.0, 1e6), "metavar": "SECONDS"}

DEFAULTS = {
    field.name: field.default for kind in (ServerOptions, Limits) for field in dataclasses.fields(kind)
}

target = OptionGroup("Target")
target.add(
    "--model", "A Hugging Face folder, or the name of a fetched model.", required=True, metavar="MODEL"
)
target.add("--device", "PyTorch device it runs on, such as cuda.", default="cpu")
target.add(
    "--dtype",
    "Below float32, tokens that nearly tie may come out differently.",
    default="float32",
    type=click.Choice(["float32", "bf16", "fp16"]),
)
target.add(
    "--device-map",
    "Spread its layers over several devices, as accelerate does: auto, balanced, sequential.",
    metavar="HOW",
)
target.add("--tp", "Split its layers over so many processes, which torchrun starts.", default=1, type=COUNT)
target.add(
    "--kv-memory",
    "Memory for keys and values, such as 4GiB.  [default: a share of what there is]",
    type=Size(),
)
target.add("--threads", "CPU threads of a forward.  [default: PyTorch's choice]", type=THREADS)
target.add("--pace-forward-ms", "Make every forward take at least this long, as a larger target would.", **MS)

network = OptionGroup("Network")
network.add("--host", "Address to listen on.", default=DEFAULTS["host"])
network.add("--port", "0 picks a free one.", default=DEFAULTS["port"], type=PORT)
network.add(
    "--max-connections", "TCP connections at a time.", default=DEFAULTS["max_connections"], type=COUNT
)
network.add(
    "--max-streams",
    "Streams at a time, those that wait to be let in included.  [default: max-sessions and a quarter]",
    type=COUNT,
)
network.add(
    "--connection-idle",
    "How long a connection may be without a stream.",
    default=DEFAULTS["connection_idle_s"],
    **SECONDS,
)
network.add(
    "--handshake-timeout",
    "How long TLS and HTTP/2 may take to stand.",
    default=DEFAULTS["handshake_timeout_s"],
    **SECONDS,
)
network.add(
    "--keepalive",
    "Ping after so long a silence: NAT tables forget silent connections.",
    default=DEFAULTS["keepalive_s"],
    **SECONDS,
)
network.add(
    "--keepalive-timeout",
    "How long a ping may go unanswered.",
    default=DEFAULTS["keepalive_timeout_s"],
    **SECONDS,
)

security = OptionGroup("Security")
security.add("--tls-cert", "Server certificate in PEM, followed by those between it and its CA.", type=FILE)
security.add("--tls-key", "Its private key in PEM.", type=FILE)
security.add("--tls-client-ca", "Ask clients for a certificate signed by one of these CAs (mTLS).", type=FILE)
security.add(
    "--auth",
    "What tells who a client is.  [default: jwt with --jwt-key, else token with --tokens, "
    "else certificate with --tls-client-ca, else none]",
    type=click.Choice(AUTHENTICATIONS),
)
security.add("--tokens", "Tenants, their quotas and tokens, as 'acespec token' writes them.", type=FILE)
security.add("--jwt-key", "Public key in PEM that JWTs are checked with; for HS256 the secret.", type=FILE)
security.add("--jwt-algorithm", "The one algorithm of JWTs.", type=click.Choice(JWT_ALGORITHMS))
security.add("--jwt-audience", "What must be in a JWT's aud.  [default: it has none]", metavar="TEXT")
security.add("--jwt-issuer", "What a JWT's iss must be.  [default: anything]", metavar="TEXT")
security.add("--jwt-tenant-claim", "The claim that names the tenant.", default="sub", metavar="CLAIM")
security.add(
    "--insecure", "Listen beyond this machine although TLS or authentication is missing.", is_flag=True
)
security.add(
    "--pad-sizes/--no-pad-sizes",
    "Pad messages to a few sizes, so that their length tells less.",
    default=DEFAULTS["pad_sizes"],
)

limits = OptionGroup("Limits")
limits.add(
    "--max-sessions",
    "Sessions with a stream, or waiting for one.",
    default=DEFAULTS["max_sessions"],
    type=COUNT,
)
limits.add(
    "--max-context",
    "Positions of a session, prompt included.  [default: the target's]",
    type=Whole(2),
)
limits.add("--max-chain", "Longest chain that is checked.", default=DEFAULTS["max_chain"], type=COUNT)
limits.add(
    "--open-timeout",
    "How long a stream may take to introduce itself.",
    default=DEFAULTS["open_timeout_s"],
    **SECONDS,
)
limits.add(
    "--idle-timeout",
    "How long a stream may be silent when it is its turn.",
    default=DEFAULTS["idle_timeout_s"],
    **SECONDS,
)
limits.add(
    "--write-timeout",
    "How long a message may go unread.",
    default=DEFAULTS["write_timeout_s"],
    **SECONDS,
)
limits.add(
    "--resume-ttl",
    "How long a session without a stream is kept.",
    default=DEFAULTS["resume_ttl_s"],
    **SECONDS_OR_NONE,
)
limits.add(
    "--evict-after",
    "Idle for so long, a session may lose its keys and values to another.",
    default=DEFAULTS["evict_after_s"],
    **SECONDS_OR_NONE,
)
limits.add(
    "--busy-retry-ms",
    "How long an edge is told to wait when there is no room.",
    default=DEFAULTS["busy_retry_ms"],
    type=COUNT,
    metavar="MS",
)

scheduling = OptionGroup("Scheduling")
scheduling.add("--token-budget", "Most tokens of one forward.", default=DEFAULTS["token_budget"], type=COUNT)
scheduling.add(
    "--batch-wait-ms",
    "How long an idle target waits for others to join a forward.",
    default=DEFAULTS["batch_wait_ms"],
    **MS,
)
scheduling.add(
    "--prefill-deadline-ms",
    "How urgent a prompt is; rounds are due at once.",
    default=DEFAULTS["prefill_deadline_ms"],
    **MS,
)

race = OptionGroup("Race")
race.add(
    "--race-eagerness",
    "When a racing session's forwards run: at once, in others' spare room while it has no drafts, or once "
    "it has drafts.",
    default=DEFAULTS["race_eagerness"].value,
    type=click.Choice([*[eagerness.value for eagerness in Eagerness], NO_RACE]),
)
race.add(
    "--race-patience-ms",
    "With eagerness cost, how long drafts are waited for.",
    default=DEFAULTS["race_patience_ms"],
    **MS,
)
race.add(
    "--max-race-nodes",
    "Drafted tokens kept for a session.",
    default=DEFAULTS["max_race_nodes"],
    type=COUNT,
)
race.add(
    "--max-race-width",
    "Drafted tokens of a session in one forward.",
    default=DEFAULTS["max_race_width"],
    type=COUNT,
)

operations = OptionGroup("Operations")
operations.add(
    "--drain-timeout",
    "On SIGTERM, how long requests under way may take.",
    default=DEFAULTS["drain_timeout_s"],
    **SECONDS_OR_NONE,
)
operations.add(
    "--log-format",
    "Lines to read, or one JSON object a line.",
    default="text",
    type=click.Choice(LOG_FORMATS),
)
operations.add(
    "--metrics-port",
    "Serve Prometheus' /metrics here; 0 picks a free one.  [default: not at all]",
    type=PORT,
)
operations.add("--metrics-host", "Address of /metrics; nothing asks who reads them.", default="127.0.0.1")

configuration = OptionGroup("Configuration")
configuration.add(
    "--config",
    "TOML or YAML file of any of these options, such as max_sessions = 64.",
    type=FILE,
    is_eager=True,
    callback=use_config,
)
configuration.add(
    "--print-config", "Check everything but the model, print what is in force, and exit.", is_flag=True
)

GROUPS = (target, network, security, limits, scheduling, race, operations, configuration)


def serve_options(function: F) -> F:
    """All options, in the order of the help."""
    return all_options(function, GROUPS)
