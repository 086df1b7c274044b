"""Policies that leave the library: bundles that act with NumPy alone, or through ONNX."""

from maxinforl.deploy.bundle import Latency, export

__all__ = ["Latency", "export"]
