"""An experiment's document as Markdown: its tables, and how they were measured."""

from __future__ import annotations

from collections.abc import Sequence

from acespec.bench.lab.document import Document
from acespec.bench.lab.view import Text, View
from acespec.bench.lab.views import views


def to_markdown(document: Document) -> str:
    """The whole text; the document's plots are files beside it."""
    parts = [f"# {document['title']}", *origin_lines(document)]
    parts += [f"![{name}]({name})" for name in document["plots"]]
    parts += [_table(view) for view in views(document)]
    return "\n\n".join(parts) + "\n"


def origin_lines(document: Document) -> list[str]:
    """What was run, with which models and on what."""
    settings = document["settings"]
    pair = settings["pair"]
    datasets = ", ".join(f"{name} ({entry['prompts']})" for name, entry in settings["datasets"].items())
    ends = "may end before" if settings["end_tokens"] else "do not end before"
    lines = [
        f"Made by `{settings['command']}` (acespec {settings['acespec']}).",
        f"Models: {pair['name']} ({pair['draft_precision']} draft, {pair['target_name']}), computed by "
        f"{pair['computed_by']}. {_clock(settings)}",
        f"Prompts: {datasets}; seeds: {', '.join(map(str, settings['seeds']))}; "
        f"{settings['max_new_tokens']} tokens each, texts {ends} that.",
    ]
    if len(settings["code"]) > 1:
        lines.append(
            f"These runs were made by {len(settings['code'])} versions of the code; with --fresh all are "
            "made again."
        )
    return lines


def _clock(settings: Document) -> str:
    """What the times are."""
    if settings["clock"] == "virtual":
        return "Times are virtual: those of the profiles and the simulated link."
    pace = settings["pace_forward_ms"]
    speed = "as fast as it is" if pace is None else f"paced to {pace:g} ms a forward at least"
    return (
        f"Times are the wall clock's on {settings['machine']}, medians of {settings['repeats']} runs: the "
        f"edge in one process, the verifier ({speed}) in another, gRPC through acespec wan-relay between "
        "them. Bytes on the wire are the connection's, without headers of TCP and IP."
    )


def _table(view: View) -> str:
    lines = [f"## {view.title}", ""]
    if view.note:
        lines += [view.note, ""]
    if view.rows:
        lines += [_line(view.header), "|" + "---|" * len(view.header)]
        lines += [_line([_cell(text) for text in row]) for row in view.rows]
    return "\n".join(lines).rstrip()


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(text: Text) -> str:
    return f"**{text.text}**" if text.strong else text.text
