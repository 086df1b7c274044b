"""Floating-point operations of a traced JAX function: its matrix products and convolutions, counted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Product:
    """One matrix product or convolution of a jaxpr, and how often it is executed."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    times: int = 1
    varying: tuple[bool, ...] = (True, True)  # which operands change between executions

    @property
    def flop(self) -> float:
        """Two per multiply-add."""
        params, (a, b) = dict(self.params), [shape for shape, _ in self.shapes]
        if self.primitive.name == "dot_general":
            (_, contracted), (_, batched) = params["dimension_numbers"]
            free = [n for i, n in enumerate(b) if i not in (*contracted, *batched)]
            return 2.0 * float(np.prod(a) * np.prod(free)) * self.times
        out = jax.eval_shape(self.run, *(jax.ShapeDtypeStruct(s, d) for s, d in self.shapes))
        kernel = np.prod(b) / b[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * float(np.prod(out.shape)) * kernel / params.get("batch_group_count", 1) * self.times

    def run(self, *operands: Any) -> Any:
        return self.primitive.bind(*operands, **dict(self.params))

    def loop(self, *operands: Any) -> Any:
        """All executions in sequence, as in the program."""
        if self.times == 1:
            return self.run(*operands)
        varying = [x for x, varies in zip(operands, self.varying) if varies]
        return jax.lax.map(lambda now: self.run(*_merged(operands, self.varying, list(now))), varying)

    def operands(self, key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, len(self.shapes))
        lead = [(self.times,) if varies and self.times > 1 else () for varies in self.varying]
        return tuple(jax.random.normal(k, (*n, *s), dtype) for k, n, (s, dtype) in zip(keys, lead, self.shapes))


def _merged(operands: tuple[Any, ...], varying: tuple[bool, ...], now: list[Any]) -> list[Any]:
    return [now.pop(0) if varies else x for x, varies in zip(operands, varying)]


def products(function: Callable, *args: Any) -> list[Product]:
    """The matrix products and convolutions that the outputs of a function depend on.

    Those inside a scan count once per iteration. Equal ones with equal operands count once, as after the compiler's
    common-subexpression elimination.

    Args:
      function: any function that JAX can trace.
      *args: its arguments, or their shapes.

    Example:
      >>> x = jax.ShapeDtypeStruct((3, 3), "float32")
      >>> sum(p.flop for p in products(lambda x: x @ x, x))
      54.0
    """
    closed = jax.make_jaxpr(function)(*args)
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    numbering = ValueNumbering()
    numbering.walk(
        live, [("input", i) for i in range(len(live.invars))], [("const", i) for i in range(len(live.constvars))]
    )
    return numbering.found


class ValueNumbering:
    """Walks a jaxpr, numbers its values so that equal ones have equal numbers, and collects the products."""

    def __init__(self, times: int = 1):
        self.times, self.found = times, list[Product]()
        self.known: dict[Any, tuple[Any, ...]] = {}
        self.varying = set[Any]()  # numbers of values that change between loop iterations

    def walk(self, jaxpr: Any, inputs: list[Any], constants: list[Any]) -> list[Any]:
        """The numbers of the outputs, given those of the inputs."""
        names = dict(zip(jaxpr.invars, inputs)) | dict(zip(jaxpr.constvars, constants))
        number = lambda v: ("literal", str(v.val), str(v.aval)) if isinstance(v, core.Literal) else names[v]
        for equation in jaxpr.eqns:
            outputs = self.outputs(equation, [number(v) for v in equation.invars])
            names |= dict(zip(equation.outvars, outputs))
        return [number(v) for v in jaxpr.outvars]

    def outputs(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, inner = equation.primitive.name, list(_inner(equation.params))
        if len(inner) == 1 and name not in ("scan", "while", "cond") and len(inner[0][0].invars) == len(inputs):
            jaxpr, constants = inner[0]
            return self.walk(jaxpr, inputs, [("value", id(c)) for c in constants])
        key = (name, str(equation.params), *inputs)
        if key not in self.known:
            self.known[key] = tuple((len(self.known), i) for i in range(len(equation.outvars)))
            varying = tuple(x in self.varying for x in inputs)
            if any(varying):
                self.varying.update(self.known[key])
            if name in PRODUCTS:
                shapes = tuple((v.aval.shape, v.aval.dtype) for v in equation.invars)
                params = tuple(equation.params.items())
                self.found.append(Product(equation.primitive, params, shapes, self.times, varying))
            parts = [self.inside(jaxpr, equation.params if name == "scan" else {}, varying) for jaxpr, _ in inner]
            if name == "cond":  # the cheaper branch: the other, such as DrM's perturbation, is rare
                parts = [min(parts, key=lambda part: sum(product.flop for product in part))]
            self.found += [product for part in parts for product in part]
        return list(self.known[key])

    def inside(self, jaxpr: Any, scan: dict[str, Any], varying: tuple[bool, ...]) -> list[Product]:
        """The products of an inner jaxpr; those of a scan are executed once per iteration."""
        body = ValueNumbering(self.times * scan.get("length", 1))
        inputs, constants = [object() for _ in jaxpr.invars], [object() for _ in jaxpr.constvars]
        same = [x for x, varies in zip(inputs[: scan.get("num_consts", 0)], varying) if not varies]
        body.varying = set(inputs) - set(same) if scan or self.times > 1 else set()
        body.walk(jaxpr, inputs, constants)
        return body.found


def _inner(params: dict[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The jaxprs inside an equation, with their constants."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr, item.consts
            elif isinstance(item, core.Jaxpr):
                yield item, [object() for _ in item.constvars]
