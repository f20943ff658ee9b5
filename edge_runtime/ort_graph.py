"""The graph files of a bundle, opened and compared with its manifest."""

from __future__ import annotations

from dataclasses import dataclass

import onnxruntime as ort

from acespec.edge_runtime.ort_interface import check_session
from acespec.edge_runtime.ort_session import EngineError, SessionSettings, open_session
from acespec.edge_runtime.providers import choose_provider
from acespec.models.manifest import Bundle, GraphName, GraphVariant


@dataclass(frozen=True)
class GraphFile:
    """An open graph, and what its shapes are fixed to."""

    session: ort.InferenceSession
    width: int | None
    """N, where it is fixed."""
    logit_rows: int | None
    """M, where it is fixed."""

    def run(self, binding: ort.IOBinding) -> None:
        """Run a step. Raises `EngineError`: mostly, memory has run out."""
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's errors share no narrower base
            cause = " ".join(str(error).split())
            raise EngineError(
                f"ONNX Runtime failed in a step ({cause}); if memory ran out, export with a smaller --context"
            ) from error


def open_files(bundle: Bundle, variant: GraphVariant, settings: SessionSettings) -> dict[str, GraphFile]:
    """Open each file of ``variant`` once. Raises `EngineError` for one that is not what the manifest says."""
    files: dict[str, GraphFile] = {}
    for step in variant.steps:
        if step.file in files:
            continue
        path = bundle.path(step.file)
        session = open_session(path, settings)
        rows = variant.rows or 0
        fixed = {"N": step.width, "M": step.logit_rows, "S": rows, "R": rows, "T": rows + step.width}
        check_session(path, session, variant, fixed)
        shapes = {argument.name: argument.shape for argument in session.get_inputs()}
        sizes = shapes["input_ids"][1], shapes["logit_rows"][0]
        files[step.file] = GraphFile(session, *(size if isinstance(size, int) else None for size in sizes))
    return files


def choose_graph(
    bundle: Bundle, provider: str = "cpu", graph: GraphName | None = None
) -> tuple[str, GraphVariant]:
    """The provider that runs, and the graph it runs: on the CPU the ort graph if there is one.

    Nothing but the CPU runs the ort graph, so ``auto`` is the CPU where no other is to be had. Raises
    `ProviderError`, `EngineError` for a graph that does not run there, or `BundleError` for one missing.
    """
    names = [variant.name for variant in bundle.manifest.graphs]
    if graph == "native" or names == ["native"]:
        raise EngineError(
            f"TensorRT alone runs the native graph of {bundle.folder}; choose --runtime tensorrt, "
            "or export with --graph ort"
        )
    if provider == "auto" and (graph == "ort" or "portable" not in names):
        provider = "cpu"
    chosen = choose_provider(provider)
    if chosen == "cpu":
        return chosen, bundle.graph(graph or ("ort" if "ort" in names else "portable"))
    if graph == "ort":
        raise EngineError(f"the ort graph runs on the CPU alone, not on {chosen}; choose --provider cpu")
    return chosen, bundle.graph("portable")
