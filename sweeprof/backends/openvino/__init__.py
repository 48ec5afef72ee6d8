"""OpenVINO: models in its own format, converted once from PyTorch, Keras or ONNX, or as a user gives them."""

import sys

# OpenVINO and NNCF send statistics of their use to a server, from a process of their own: not while something is measured.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
