"""From an exportable decoder to a neutral graph: opset 21, with the attention left open."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import onnxscript
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from acespec.errors import AcespecError
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import TensorSpec

OPSET = 21
ATTENTION_DOMAIN = "acespec"
DTYPE_NAMES = {
    onnx_ir.DataType.FLOAT: "float",
    onnx_ir.DataType.FLOAT16: "float16",
    onnx_ir.DataType.BFLOAT16: "bfloat16",
    onnx_ir.DataType.INT32: "int32",
    onnx_ir.DataType.INT64: "int64",
}
"""ONNX Runtime's spelling of the types that graphs take and return."""
# Any widths do, as long as no two dimensions look alike to the tracer.
TRACED_TOKENS, TRACED_LOGIT_ROWS = 8, 5
_ATTENTION = onnxscript.values.Op(
    onnxscript.values.Opset(ATTENTION_DOMAIN, 1),
    "Attention",
    onnx.defs.OpSchema(
        "Attention",
        ATTENTION_DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter(name, "T") for name in ("query", "key", "value", "mask")],
        outputs=[onnx.defs.OpSchema.FormalParameter("output", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "")],
        attributes=[onnx.defs.OpSchema.Attribute("scale", onnx.defs.OpSchema.AttrType.FLOAT)],
    ),
)


class ExportError(AcespecError):
    """A model could not be turned into a graph that runs."""


class MatrixProduct(nn.Module):
    """A linear layer that keeps its weight as a graph multiplies: ``[in, out]``, ready to be quantised."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Take over ``weight`` ``[in, out]`` and ``bias`` ``[out]`` with the memory they are in."""
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product = inputs @ self.weight
        return product if self.bias is None else product + self.bias


def use_matrix_products(decoder: ExportableDecoder, to_be_changed: bool = True) -> None:
    """Replace every linear layer of the decoder, and cut the head's to the vocabulary it is asked for.

    Where weights are ``to_be_changed``, a head tied to the table of tokens gets a copy of it.
    """
    head = decoder.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    table = decoder.model.get_input_embeddings().weight
    for parent in list(decoder.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                width = decoder.vocab_size if child is head else child.out_features
                weight, bias = child.weight[:width], child.bias
                if to_be_changed and child.weight is table:
                    weight = weight.clone()
                product = MatrixProduct(weight.T, None if bias is None else bias[:width])
            elif type(child) is Conv1D:  # GPT-2's linear layer, which keeps its weight as a graph does
                product = MatrixProduct(child.weight, child.bias)
            else:
                continue
            setattr(parent, name, product)


def empty_weights(decoder: ExportableDecoder, names: Iterable[str]) -> None:
    """Free the memory of the weights called so: the graph will hold them in another form.

    They keep shape and type, which is all that tracing reads of them, and a value each: the exporter makes
    one of equal constants. The other weights move, for they may be pieces of one file in memory, which is
    freed whole or not at all.
    """
    for number, name in enumerate(names):
        path, _, attribute = name.rpartition(".")
        module = decoder.get_submodule(path)
        weight = getattr(module, attribute)
        empty = torch.full((1,), float(number), dtype=weight.dtype).expand(weight.shape)
        setattr(module, attribute, nn.Parameter(empty, requires_grad=False))
    for parameter in decoder.parameters():
        if parameter.is_contiguous():
            parameter.data = parameter.data.clone()


def trace_graph(decoder: ExportableDecoder) -> onnx_ir.Model:
    """Trace the decoder into a graph of one step, in which N tokens, M logit rows and T mask columns vary.

    Each layer's attention is one node `acespec::Attention` of query, key, value and mask, in layer order,
    with no past: a lowering gives it one. Raises `ExportError` when the model's code cannot be traced.
    """
    tokens, rows = TRACED_TOKENS, TRACED_LOGIT_ROWS
    masks = [torch.zeros(1, 1, tokens, tokens, dtype=decoder.dtype) for _ in decoder.masks]
    example = (
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.arange(tokens)[None],
        torch.arange(rows),
        masks,
    )
    varying = ({1: "N"}, {1: "N"}, {0: "M"}, [{2: "N", 3: "T"}] * len(masks))
    names = ["input_ids", "position_ids", "logit_rows", *(mask.name for mask in decoder.masks)]
    outputs = ["logits"] if decoder.top_k is None else ["top_logits", "top_ids", "log_sum_exp"]
    try:
        with torch.no_grad(), quiet_exporter():
            program = torch.onnx.export(
                decoder.eval(),
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=varying,
                custom_translation_table={torch.ops.acespec.attention.default: _attention_node},
                verbose=False,
            )
    except Exception as error:  # the exporter's errors share no base
        raise ExportError(
            f"{type(decoder.model).__name__} cannot be traced ({_first_cause(error)}); "
            "run with -vv for the whole story"
        ) from error
    assert program is not None
    model: onnx_ir.Model = program.model
    divide_by_roots(model.graph)
    return model


def _first_cause(error: BaseException) -> str:
    """What began it: the exporter wraps errors several times, with advice about itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _attention_node(query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
    return _ATTENTION(query, key, value, mask, scale=scale)


def attention_nodes(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """The neutral attention nodes of a traced graph, of layers 0, 1, ..."""
    return [node for node in graph if (node.domain, node.op_type) == (ATTENTION_DOMAIN, "Attention")]


def tensor_spec(value: onnx_ir.Value) -> TensorSpec:
    """A graph input or output as the manifest describes it."""
    assert value.name is not None
    assert value.shape is not None
    assert value.dtype is not None
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    return TensorSpec(name=value.name, dtype=DTYPE_NAMES[value.dtype], shape=shape)


def divide_by_roots(graph: onnx_ir.Graph) -> None:
    """Write ``x * (1 / sqrt(y))`` as ``x / sqrt(y)``: the form in which runtimes recognise a normalisation.

    ONNX Runtime then runs each as one operator instead of seven; a step of a small model is 3 to 8 % faster.
    """
    for reciprocal in [node for node in graph if node.op_type == "Reciprocal"]:
        root = reciprocal.inputs[0]
        source = root.producer() if root is not None else None
        if source is None or source.op_type != "Sqrt":
            continue
        for use in tuple(reciprocal.outputs[0].uses()):
            product = use.node
            if product.op_type == "Mul":
                quotient = onnx_ir.node("Div", [product.inputs[1 - use.idx], root])
                graph.insert_before(product, quotient)
                onnx_ir.convenience.replace_nodes_and_values(
                    graph, product, [product], [quotient], product.outputs, quotient.outputs
                )
        if not reciprocal.outputs[0].uses():
            graph.remove(reciprocal, safe=True)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keep the exporter's remarks about itself (absent torchvision, deprecations) off the screen."""
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exporter_log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            exporter_log.setLevel(level)


def forget_weights(graph: onnx_ir.Graph) -> None:
    """Let go of what the graph's constants hold. The exporter's rewriting rules keep the last graph alive."""
    for value in graph.initializers.values():
        value.const_value = None


def save_graph(model: onnx_ir.Model, file: Path) -> None:
    """Write ``file``, and beside it its weights as ``file.data``."""
    onnx_ir.save(model, file, external_data=f"{file.name}.data")
