// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/protocol/messages.h"

namespace freshet::fuzz {

std::vector<Input> seeds() {
  using namespace protocol;
  const std::vector<Message> messages = {
      Hello{.session = 1, .model = "demo", .mode = Mode::every, .label = "server", .host = "boot/net"},
      Want{.session = 1, .request = 2, .after = 3, .known_architectures = {{.low = 1, .high = 2}}},
      Held{.session = 1, .grants_seen = 2, .numbers = {3, 4, 5}},
      Ping{.session = 1, .serving = 2},
      Bye{.session = 1},
      StatRequest{.model = "demo"},
      Welcome{.session = 1, .door = "/d", .door_token = 5, .newest = 6},
      Grant{.session = 1,
            .request = 2,
            .grant = 3,
            .number = 4,
            .manifest = Input(100),
            .architecture = Input(50),
            .places = {{.slab = 0, .offset = 0, .bytes = 64}, {.slab = 1, .offset = 64, .bytes = 36}},
            .slab_bytes = {64, 100}},
      Hello{.session = 2, .model = "demo", .device = "GPU-00112233-4455-6677-8899-aabbccddeeff"},
      Grant{.session = 2,
            .grant = 1,
            .number = 4,
            .manifest = Input(100),
            .architecture = Input(50),
            .places = {{.slab = 0, .offset = 0, .bytes = 64}, {.slab = 0, .offset = 64, .bytes = 36}},
            .slab_bytes = {100},
            .device_places = {{.slab = 0, .offset = 4096, .bytes = 64}, {}},
            .device_slab_bytes = {std::uint64_t{2} << 20}},
      Refusal{.session = 1, .request = 2, .code = Code::not_found, .message = "nothing newer"},
      Pong{.session = 1, .incarnation = 2, .newest = 3},
      UnknownSession{.session = 1},
      StatReply{.json = "{}"},
      Announcement{.model = "demo", .incarnation = 1, .number = 2, .announced_ns = 3}};
  std::vector<Input> seeds;
  for (const Message& message : messages) seeds.push_back(encode(message));
  return seeds;
}

void check_places(const std::vector<SegmentPlace>& places, const std::vector<std::uint64_t>& slab_bytes) {
  for (const SegmentPlace& place : places) {
    FRESHET_CHECK(place.slab < slab_bytes.size());
    FRESHET_CHECK(place.offset <= slab_bytes[place.slab]);
    FRESHET_CHECK(place.bytes <= slab_bytes[place.slab] - place.offset);
  }
}

}  // namespace freshet::fuzz

/// What was accepted must survive a round trip, and its places must lie inside its slabs.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace freshet;
  const auto message = protocol::decode(fuzz::bytes_of_input(data, size));
  if (!message) {
    FRESHET_CHECK(message.error().code() == Code::corrupt);
    return 0;
  }
  const auto again = protocol::decode(protocol::encode(*message));
  FRESHET_CHECK(again.has_value() && again->index() == message->index());
  if (const auto* grant = std::get_if<protocol::Grant>(&*message)) {
    fuzz::check_places(grant->places, grant->slab_bytes);
    FRESHET_CHECK(grant->device_places.empty() || grant->device_places.size() == grant->places.size());
    std::vector<SegmentPlace> on_device = grant->device_places;
    std::erase_if(on_device, [](const SegmentPlace& place) { return place.bytes == 0; });
    fuzz::check_places(on_device, grant->device_slab_bytes);
  }
  return 0;
}
