"""The compilers that ``torch.compile`` can use. Imports no framework: planning checks the setting."""

from typing import Literal

Compiler = Literal["inductor", "openvino", "cudagraphs", "tensorrt", "openxla", "tvm", "aot_eager", "eager"]
"""As ``torch.compile(backend=…)`` calls them. ``eager`` and ``aot_eager`` capture the graph, and run it without generating code."""
