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
      Refusal{.session = 1, .request = 2, .code = Code::not_found, .message = "nothing newer"},
      Pong{.session = 1, .incarnation = 2, .newest = 3},
      UnknownSession{.session = 1},
      StatReply{.json = "{}"},
      Announcement{.model = "demo", .incarnation = 1, .number = 2, .announced_ns = 3}};
  std::vector<Input> seeds;
  for (const Message& message : messages) seeds.push_back(encode(message));
  return seeds;
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
    for (const SegmentPlace& place : grant->places) {
      FRESHET_CHECK(place.slab < grant->slab_bytes.size());
      FRESHET_CHECK(place.offset <= grant->slab_bytes[place.slab]);
      FRESHET_CHECK(place.bytes <= grant->slab_bytes[place.slab] - place.offset);
    }
  }
  return 0;
}
