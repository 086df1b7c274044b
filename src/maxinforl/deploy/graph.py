"""A policy as an ONNX graph, from observations to native actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl.agent import Agent
from maxinforl.core.types import Spec
from maxinforl.deploy.policy_weights import operations_of, strides_of, weights_of
from maxinforl.errors import missing_extra
from maxinforl.runner import are_many, gathered, parted, with_arrays

OPSET, IR = 18, 10  # old enough for every runtime of the last years


class Graph:
    """A chain of nodes; each reads the output of the one before."""

    def __init__(self, first: str):
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = first

    def constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def then(self, op: str, *values: np.ndarray, name: str | None = None, **attributes: Any) -> None:
        from onnx import helper

        output = name or f"value_{len(self.nodes)}"
        inputs = [self.last, *(self.constant(v) for v in values)]
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        self.last = output

    def dense(self, weight: np.ndarray, bias: np.ndarray) -> None:
        self.then("MatMul", weight)
        self.then("Add", bias)

    def join(self, op: str, other: str) -> None:
        """A node of the last output and an earlier one."""
        from onnx import helper

        output = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, other], [output]))
        self.last = output

    def concatenate(self, names: list[str]) -> None:
        from onnx import helper

        self.last = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node("Concat", names, [self.last], axis=-1))

    def operate(self, name: str, arrays: list[np.ndarray], kept: list[str]) -> None:
        """One operation of the policy's network; `kept` are the starts of its open residual connections."""
        if name == "dense":
            self.dense(*arrays)
        elif name == "layer_norm":
            self.then("LayerNormalization", *arrays, axis=-1, epsilon=1e-6)
        elif name == "standardize":
            for op, array in zip(("Sub", "Mul", "Add"), arrays):
                self.then(op, array)
        elif name == "keep":
            kept.append(self.last)
        elif name == "add":
            self.join("Add", kept.pop())
        elif name == "silu":
            before = self.last
            self.then("Sigmoid")
            self.join("Mul", before)
        else:
            self.then({"relu": "Relu", "tanh": "Tanh"}[name])


def imported() -> Any:
    try:
        import onnx
        import onnxruntime  # noqa: F401 - without it the graph could not be checked here
    except ImportError as error:
        raise missing_extra("onnx", "--to onnx") from error
    return onnx


def encode(graph: Graph, weights: dict[str, np.ndarray], strides: list[int], of: str = "") -> None:
    """Images in h-w-c order through convolutions, which ONNX lays out as c-h-w, and the projection."""
    graph.then("Cast", to=1)  # float32
    graph.then("Div", np.array(255, np.float32))
    graph.then("Transpose", perm=[0, 3, 1, 2])
    for i, stride in enumerate(strides):
        kernel = weights[f"{of}conv.{i}.weight"].transpose(3, 2, 0, 1)
        graph.then("Conv", kernel, weights[f"{of}conv.{i}.bias"], strides=[stride, stride])
        graph.then("Relu")
    graph.then("Transpose", perm=[0, 2, 3, 1])
    graph.then("Flatten", axis=1)
    graph.dense(weights[f"{of}trunk.weight"], weights[f"{of}trunk.bias"])
    graph.then("LayerNormalization", weights[f"{of}trunk.scale"], weights[f"{of}trunk.shift"], axis=-1, epsilon=1e-6)
    graph.then("Tanh")


def inputs(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the graph's inputs: `observation` or, of images and vectors, each image and the vector."""
    if not spec.layout:
        return {"observation": spec.obs}
    images = {f"image_{i}": shape for i, shape in enumerate(spec.images)}
    return images | ({"vector": (spec.vector,)} if spec.vector else {})


def read(graph: Graph, weights: dict[str, np.ndarray], strides: list[int], spec: Spec) -> None:
    """From the inputs to what the policy's network takes."""
    if not spec.layout:
        return encode(graph, weights, strides) if strides else None
    latents = []
    for i in range(len(spec.images)):
        graph.last = f"image_{i}"
        encode(graph, weights, strides, f"image.{i}.")
        latents.append(graph.last)
    graph.concatenate([*latents, *(["vector"] if spec.vector else [])])


def model(agent: Agent) -> bytes:
    """The bytes of policy.onnx: what `inputs` names, output `action`, all with a leading batch axis."""
    onnx = imported()
    helper, kinds = onnx.helper, onnx.TensorProto
    weights, strides = weights_of(agent), strides_of(agent)
    low, high = (np.asarray(b, np.float32) for b in (agent.action_space.low, agent.action_space.high))
    graph = Graph("observation")
    read(graph, weights, strides, agent.spec.seen)
    kept: list[str] = []
    for name, arrays in with_arrays([op.name for op in operations_of(agent)], weights):
        graph.operate(name, arrays, kept)
    graph.then("Tanh")
    graph.then("Mul", high / 2 - low / 2)
    graph.then("Add", high / 2 + low / 2)
    graph.then("Max", low)
    graph.then("Min", high, name="action")
    seen = [
        helper.make_tensor_value_info(name, kinds.UINT8 if len(shape) == 3 else kinds.FLOAT, ["batch", *shape])
        for name, shape in inputs(agent.spec.seen).items()
    ]
    done = helper.make_tensor_value_info("action", kinds.FLOAT, ["batch", agent.spec.action])
    body = helper.make_graph(graph.nodes, "policy", seen, [done], graph.constants)
    made = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


def session(path: Path, parts: list[dict[str, Any]], stack: int = 1) -> Callable[[Any], np.ndarray]:
    """The graph as a function of one observation or a batch; with the contract's `parts`, of the environment's own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # one small action: threads only add latency
    run = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    shapes = {each.name: tuple(each.shape[1:]) for each in run.get_inputs()}

    def arrays(observation: Any) -> dict[str, np.ndarray]:
        if not are_many(parts):
            return {"observation": gathered(observation, parts, shapes["observation"])}
        images, vector = parted(observation, parts, stack)
        found = {f"image_{i}": image for i, image in enumerate(images)} | {"vector": vector}
        return {name: found[name] for name in shapes}

    def act(observation: Any) -> np.ndarray:
        given = arrays(observation)
        single = all(array.ndim == len(shapes[name]) for name, array in given.items())
        feed = {name: array[None] if single else array for name, array in given.items()}
        feed = {name: array if array.dtype == np.uint8 else array.astype(np.float32) for name, array in feed.items()}
        action = np.asarray(run.run(["action"], feed)[0])
        return action[0] if single else action

    return act
