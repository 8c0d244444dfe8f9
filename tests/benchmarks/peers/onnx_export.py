"""ONNX models of a checkpoint's LSTM: its body and its output layer, in float32 and in int8 of ONNX Runtime.

torch's own exporter needs more packages; two kinds of layers are quickly written by hand.
"""

import logging

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from peers.network import cell_layers

OPSET, IR_VERSION = 17, 9


def write_models(tensors, folder):
    """Write `float32` and `int8`, each with `body.onnx` and `output.onnx`, from a checkpoint's tensors by name."""
    logging.getLogger().addFilter(
        lambda _record: False
    )  # advice about shapes, which these models do not need
    for name, model in (("body", body_model(tensors)), ("output", output_model(tensors))):
        paths = [folder / precision / f"{name}.onnx" for precision in ("float32", "int8")]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, paths[0])
        quantize_dynamic(*paths)


def body_model(tensors):
    """Return a model from ids [T, B], lengths [B] and states [1, B, H] to outputs [T, B, H] and new states."""
    layers = cell_layers(tensors)
    size = layers[-1]["weight_hh"].shape[1]
    constants = {"embedding": tensors["embedding.weight"].numpy(), "direction": np.array([1])}
    nodes = [helper.make_node("Gather", ["embedding", "ids"], ["vectors"])]
    given, made, vectors = [], [], "vectors"
    for number, layer in enumerate(layers):
        constants |= {f"{name}{number}": _for_onnx(layer[name]) for name in ("weight_ih", "weight_hh")}
        constants[f"bias{number}"] = np.concatenate(
            [_for_onnx(layer[name]) for name in ("bias_ih", "bias_hh")], axis=1
        )
        states, results = [f"h{number}", f"c{number}"], [f"next_h{number}", f"next_c{number}"]
        weights = [f"{name}{number}" for name in ("weight_ih", "weight_hh", "bias")]
        nodes += [
            helper.make_node(
                "LSTM", [vectors, *weights, "lengths", *states], [f"all{number}", *results], hidden_size=size
            ),
            helper.make_node("Squeeze", [f"all{number}", "direction"], [f"outputs{number}"]),
        ]
        vectors, given, made = f"outputs{number}", given + states, made + results
    state = (TensorProto.FLOAT, [1, "B", size])
    return _model(
        nodes,
        constants,
        {"ids": (TensorProto.INT64, ["T", "B"]), "lengths": (TensorProto.INT32, ["B"])}
        | dict.fromkeys(given, state),
        {vectors: (TensorProto.FLOAT, ["T", "B", size])} | dict.fromkeys(made, state),
    )


def output_model(tensors):
    """Return a model from outputs [N, H] to logits [N, V]."""
    weight, bias = tensors["embedding.weight"].numpy(), tensors["output.bias"].numpy()
    nodes = [
        helper.make_node("MatMul", ["outputs", "weight"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["logits"]),
    ]
    return _model(
        nodes,
        {"weight": np.ascontiguousarray(weight.T), "bias": bias},
        {"outputs": (TensorProto.FLOAT, ["N", weight.shape[1]])},
        {"logits": (TensorProto.FLOAT, ["N", len(bias)])},
    )


def _for_onnx(tensor):
    """Return an LSTM's tensor for one direction, gates in the order of ONNX: input, output, forget, cell."""
    in_gate, forget, cell, out = tensor.numpy().reshape(4, -1, *tensor.shape[1:])
    return np.concatenate([in_gate, out, forget, cell])[None]


def _model(nodes, constants, given, made):
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    ends = [
        [helper.make_tensor_value_info(name, *kind) for name, kind in part.items()] for part in (given, made)
    ]
    graph = helper.make_graph(nodes, "lstm", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
