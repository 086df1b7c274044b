"""Export of policies: bundles that need only NumPy, or ONNX."""

from maxinforl.deploy.bundle import Latency, export

__all__ = ["Latency", "export"]
