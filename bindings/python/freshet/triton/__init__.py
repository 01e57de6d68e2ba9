# SPDX-License-Identifier: Apache-2.0
"""Models of Triton's Python backend that answer with the newest weights, while the server runs.

    class TritonPythonModel(freshet.triton.Model):        # all of 1/model.py
        model = "digits"
        def infer(self, weights, inputs):
            return {"y": inputs["x"] @ weights["w"] + weights["b"]}

`freshet triton new` writes a model's folder, `freshet triton serve` starts the server of the wheel nvidia-pytriton.
docs/python/triton.md has the whole of it.
"""
from .model import Model

__all__ = ["Model"]
