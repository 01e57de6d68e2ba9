# SPDX-License-Identifier: Apache-2.0
"""One version of a model's weights in a session of onnxruntime."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np
import onnxruntime

from ._arrays import view_of
from ._errors import InvalidArgument
from ._onnx_graph import Initializer
from .subscriber import Snapshot

_BITS = {"bf16": np.uint16, "f8_e4m3": np.uint8, "f8_e5m2": np.uint8}  # NumPy has no such types; onnxruntime is told which it is.
_NOTHING = np.empty(0, np.float32)


class Answers(List[Any]):
    """What InferenceSession.run() returns, and the version of the weights that it was computed with."""

    weight_version: int

    def __init__(self, answers: Any, weight_version: int) -> None:
        super().__init__(answers)
        self.weight_version = weight_version


def values_of(snapshot: Snapshot, bound: Mapping[str, str], initializers: Mapping[str, Initializer]) -> Dict[str, Any]:
    """The snapshot's tensors as onnxruntime's values, by initializers, in the memory where the version lies."""
    pin = snapshot._here()
    values = {}
    for name, tensor in bound.items():
        index = pin.find(tensor)
        _, dtype, shape, _ = pin.spec(index)
        bits = _BITS.get(dtype)
        if bits is None:
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(view_of(pin.bytes(index), dtype, shape))
        else:
            array = pin.bytes(index).view(bits).reshape(shape)
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, initializers[name].elem_type)
    return values


class Served:
    """A session with one version of the weights, which stays mapped as long as this lives. Any thread."""

    # session: whose initializers are the weights, or, with `as_inputs`, whose graph inputs they are. values: by initializers.

    def __init__(self, session: Any, snapshot: Snapshot, values: Dict[str, Any], initializers: Mapping[str, Initializer],
                 as_inputs: bool) -> None:
        self.session = session
        self._version = snapshot.version
        self.bound = frozenset(values)
        self.values = values
        self._snapshot = snapshot
        self._as_inputs = as_inputs
        self._overridable = frozenset(name for name in values if initializers[name].is_input)
        self._inputs = frozenset(one.name for one in session.get_inputs()) - self.bound
        self._outputs = [one.name for one in session.get_outputs()]
        self._bindings: List[Any] = []  # Those that no run is in. There are as many as there were runs at one time.

    def _get_inputs(self) -> List[Any]:
        return [one for one in self.session.get_inputs() if one.name in self._inputs]

    def _get_overridable(self) -> List[Any]:
        mine = [one for one in self.session.get_inputs() if one.name in self._overridable]
        return mine + list(self.session.get_overridable_initializers())

    @property
    def version(self) -> int:
        """The version's number."""
        return self._version

    def _is_of(self, snapshot: Snapshot) -> bool:
        return self._snapshot._here().is_of_version(snapshot._here())

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Answers:
        """As InferenceSession.run(), with this version's weights."""
        feeds, options = input_feed, run_options
        if not self._as_inputs:
            return Answers(self.session.run(output_names, feeds, options), self._version)
        names = list(output_names) if output_names else self._outputs
        # A binding takes a run's inputs over to the next one: each run gives all of them, or goes the other way.
        if options is None and type(feeds) is dict and feeds.keys() == self._inputs and len(set(names)) == len(names) \
                and all(map(_is_plain, feeds.values())):
            try:
                return Answers(self._run_bound(names, feeds), self._version)
            except Exception:  # With other classes than those of run(), which tells it below.
                pass
        return Answers(self.session.run(names, self._with_weights(feeds), options), self._version)

    def _run_bound(self, names: List[str], feeds: Mapping[str, np.ndarray]) -> Any:
        """Weights are bound once for each run at a time, not once a run: with many of them that takes longer than the run."""
        try:
            binding = self._bindings.pop()
        except IndexError:
            binding = self.session.io_binding()
            for name, value in self.values.items():
                binding.bind_ortvalue_input(name, value)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array if array.flags.c_contiguous else np.ascontiguousarray(array))
        for name in names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        answers = binding.copy_outputs_to_cpu()
        binding.clear_binding_outputs()
        for name in feeds:
            binding.bind_cpu_input(name, _NOTHING)  # The request's memory is not kept.
        self._bindings.append(binding)
        return answers

    def _with_weights(self, feeds: Any) -> Dict[str, Any]:
        for name in feeds:
            if name in self.bound and name not in self._overridable:
                raise InvalidArgument(f"feeds: {name} is a weight, which comes from {self._snapshot.model}@{self._version}: leave it out")
        return {**self.values, **feeds}


def _is_plain(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype.kind in "fiub" and value.dtype.isnative
