// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/sim/host.h"

#include "core/base/format.h"
#include "tests/transport/sim/hub.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {

Source* Host::source_of(const std::string& address) const {
  const auto begin = address.find('/');
  const std::string name =
      begin == std::string::npos ? address : address.substr(begin + 1, address.rfind('/') - begin - 1);
  for (Source* source : sources) {
    if (source->name() == name) return source;
  }
  return nullptr;
}

void Host::check_write(const ArenaMemory& memory, const SegmentPlace& place, std::uint32_t tensor) const {
  for (const SimSubscriber* subscriber : subscribers) {
    if (!subscriber->could_read(memory, place)) continue;
    world.violated(
        format("a segment of tensor {} is written while {} could read it", tensor, subscriber->kind().label));
  }
  for (Source* source : sources) {
    if (source->hub() == nullptr || !source->hub()->data().could_read(memory, place)) continue;
    world.violated(
        format("a segment of tensor {} is written while a fetch from {} could read it", tensor, source->name()));
  }
}

}  // namespace freshet::sim
