"""Makes the parity fixture of ONNX files: models/tiny/bert-gelu as a graph, with the weights that dynamic quantisation makes.

    python models/tiny/make_onnx.py

Writes models/tiny/bert-onnx/. Needs onnx, onnxruntime, numpy and safetensors (the committed file was made with onnx 1.22 and onnxruntime 1.31).
The names are those of `torch.onnx.export`: the weights of linear layers are transposed and have numbers for names. Tests run the
file itself as their reference.
"""

import json
import pathlib
import shutil

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
SOURCE, OUT = HERE / "bert-gelu", HERE / "bert-onnx"


class Graph:
    def __init__(self, weights):
        self.weights, self.nodes, self.tensors = weights, [], []

    def tensor(self, name, array):
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name):
        return self.tensor(name, self.weights[name])

    def node(self, kind, *inputs, **attributes):
        output = f"/{kind}_{len(self.nodes)}_output_0"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value, kind=np.float32):
        return self.node("Constant", value=numpy_helper.from_array(np.array(value, kind)))

    def linear(self, x, name):
        matrix = self.tensor(f"onnx::MatMul_{900 + len(self.tensors)}", self.weights[name + ".weight"].T)
        return self.node("Add", self.weight(name + ".bias"), self.node("MatMul", x, matrix))

    def norm(self, x, name, epsilon):
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centred, self.constant(2)), axes=[-1])
        divided = self.node("Div", centred, self.node("Sqrt", self.node("Add", variance, self.constant(epsilon))))
        return self.node("Add", self.node("Mul", divided, self.weight(name + ".weight")), self.weight(name + ".bias"))

    def by_head(self, x, heads, width, order):
        size = self.node("Unsqueeze", self.node("Gather", self.node("Shape", x), self.constant(0, np.int64)), self.constant([0], np.int64))
        parts = [self.constant([number], np.int64) for number in (-1, heads, width)]
        return self.node("Transpose", self.node("Reshape", x, self.node("Concat", size, *parts, axis=0)), perm=order)

    def gelu(self, x):
        erf = self.node("Erf", self.node("Div", x, self.constant(2**0.5)))
        return self.node("Mul", self.node("Mul", x, self.node("Add", erf, self.constant(1))), self.constant(0.5))


def build(config, weights):
    g = Graph(weights)
    d, heads, epsilon = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
    tokens = g.node("Unsqueeze", g.node("Gather", g.node("Shape", "input_ids"), g.constant(1, np.int64)), g.constant([0], np.int64))
    numbers = g.tensor("embeddings.position_ids", np.arange(config["max_position_embeddings"], dtype=np.int64)[None])
    positions = g.node("Slice", numbers, g.constant([0], np.int64), tokens, g.constant([1], np.int64))
    of = {"word": "input_ids", "token_type": "token_type_ids", "position": positions}
    words, types, places = (g.node("Gather", g.weight(f"embeddings.{name}_embeddings.weight"), ids) for name, ids in of.items())
    x = g.norm(g.node("Add", g.node("Add", words, types), places), "embeddings.LayerNorm", epsilon)
    mask = g.node("Unsqueeze", g.node("Cast", "attention_mask", to=TensorProto.FLOAT), g.constant([1, 2], np.int64))
    mask = g.node("Mul", g.node("Sub", g.constant(1), mask), g.constant(np.finfo(np.float32).min))
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        q, k, v = (g.linear(x, f"{name}attention.self.{part}") for part in ("query", "key", "value"))
        q, k, v = (g.by_head(y, heads, d // heads, order) for y, order in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        logits = g.node("Div", g.node("MatMul", q, k), g.constant((d // heads) ** 0.5))
        y = g.node("MatMul", g.node("Softmax", g.node("Add", logits, mask), axis=-1), v)
        y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.constant([0, 0, d], np.int64))
        x = g.norm(g.node("Add", g.linear(y, name + "attention.output.dense"), x), name + "attention.output.LayerNorm", epsilon)
        y = g.gelu(g.linear(x, name + "intermediate.dense"))
        x = g.norm(g.node("Add", g.linear(y, name + "output.dense"), x), name + "output.LayerNorm", epsilon)
    g.nodes[-1].output[0] = "last_hidden_state"
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    hidden = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "t", d])
    graph = helper.make_graph(g.nodes, "bert", ids, [hidden], g.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)


def main():
    OUT.mkdir(exist_ok=True)
    config = json.loads((SOURCE / "config.json").read_text())
    onnx.save(build(config, load_file(SOURCE / "model.safetensors")), OUT / "f32.onnx")
    quantize_dynamic(OUT / "f32.onnx", OUT / "model.onnx", weight_type=QuantType.QInt8)
    (OUT / "f32.onnx").unlink()
    shutil.copy(SOURCE / "tokenizer.json", OUT)


if __name__ == "__main__":
    main()
