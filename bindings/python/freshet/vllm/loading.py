# SPDX-License-Identifier: Apache-2.0
"""How a version gets into a model of vLLM's: through the model's own load_weights(), which knows what is fused and sharded."""
from __future__ import annotations

import contextlib
import itertools
import sys
from typing import Any, ContextManager, Dict, List, Tuple

import torch

from ..subscriber import Snapshot

# What these do to weights after loading leaves them as they were loaded.
_PLAIN_METHODS = {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}
_PLAIN_LAYERS = {"Attention", "MMEncoderAttention"}


def changed_names(snapshot: Snapshot, base: Snapshot, layerwise: bool) -> List[str]:
    """What has to be loaded over `base`: what changed; with `layerwise` all of each layer where something changed, since vLLM
    builds a layer anew out of all its tensors."""
    changed = snapshot.changed_since(base)
    if not layerwise:
        return changed
    layers = {_layer_of(name) for name in changed}
    return [name for name in snapshot if _layer_of(name) in layers]


def _layer_of(name: str) -> str:
    """Up to the first number: what vLLM fuses (q, k and v; experts) lies within one of those. The rest counts as one layer."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:place + 1])
    return ""


def is_converted(model: torch.nn.Module, vllm_config: Any) -> bool:
    """Whether vLLM converts weights after loading, or may do so: then they cannot be loaded over what is there. True in doubt."""
    if getattr(getattr(vllm_config, "model_config", None), "quantization", None):
        return True
    platform = sys.modules.get("vllm.platforms")
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and (type(method).__name__ not in _PLAIN_METHODS or (platform and not platform.current_platform.is_cuda())):
            return True
        if hasattr(layer, "process_weights_after_loading") and type(layer).__name__ not in _PLAIN_LAYERS:
            return True
    return False


@torch.no_grad()
def load(model: torch.nn.Module, model_config: Any, weights: List[Tuple[str, torch.Tensor]], layerwise: bool) -> None:
    """Loads these tensors by checkpoint names. What load_weights() raises comes out; then the model has some of them."""
    if not weights:
        return
    if not layerwise:
        with _parts_are_enough():
            _load_weights(model, weights)
        return
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
    initialize_layerwise_reload(model)
    try:
        with _parts_are_enough():
            _load_weights(model, weights)
    finally:
        finalize_layerwise_reload(model, model_config)


def _load_weights(model: Any, weights: List[Tuple[str, torch.Tensor]]) -> None:
    model.load_weights(iter(weights))


def _parts_are_enough() -> ContextManager[Any]:
    """Some models expect all tensors of a draft head at once, unless told otherwise; those have imported what tells them."""
    validation = sys.modules.get("vllm.model_executor.model_loader.mtp_validation")
    if validation is not None and hasattr(validation, "disable_mtp_completeness_check"):
        return validation.disable_mtp_completeness_check()
    return contextlib.nullcontext()


def copies_of(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """The model's tensors in this host's memory: what put_back() needs where no version can be loaded again."""
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named}


@torch.no_grad()
def put_back(model: torch.nn.Module, copies: Dict[str, torch.Tensor]) -> None:
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        tensor.copy_(copies[name])
