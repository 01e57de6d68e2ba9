#pragma once

/// Slot ids of a graph's layer calls. The definition, byte for byte, is in core/FORMAT.md, "Slot ids".

#include <span>
#include <vector>

#include "core/graph.h"

namespace freshet {

/// One id per layer. REQUIRES: the layers passed Architecture::build's checks. Linear in the size of the graph.
std::vector<SlotId> compute_slots(std::span<const Layer> layers, std::span<const TensorSpec> tensors);

}  // namespace freshet
