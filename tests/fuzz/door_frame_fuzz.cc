// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/door_frame.h"

#include <algorithm>

#include "core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {

std::vector<Input> seeds() {
  std::vector<Input> seeds = {shm::encode(shm::Knock{.session = 1, .token = 2})};
  for (const bool is_on_device : {false, true}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, shm::kSlabsPerFrameMax}) {
      seeds.push_back(
          shm::encode(shm::SlabFrame{.first_slab = count,
                                     .slab_bytes = std::vector<std::uint64_t>(count, std::uint64_t{2} << 20),
                                     .is_on_device = is_on_device}));
    }
  }
  return seeds;
}

}  // namespace freshet::fuzz

/// What was accepted is what is encoded again, byte for byte; a guest maps no more slabs, and no larger ones, than it
/// may.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace freshet;
  const Bytes bytes = fuzz::bytes_of_input(data, size);
  const auto same = [&](const std::vector<std::byte>& again) {
    return std::equal(again.begin(), again.end(), bytes.begin(), bytes.end());
  };
  if (const auto knock = shm::decode_knock(bytes)) FRESHET_CHECK(same(shm::encode(*knock)));
  const auto frame = shm::decode_slab_frame(bytes);
  if (!frame) {
    FRESHET_CHECK(frame.error().code() == Code::corrupt);
    return 0;
  }
  FRESHET_CHECK(same(shm::encode(*frame)));
  FRESHET_CHECK(frame->first_slab + frame->slab_bytes.size() <= shm::kDoorSlabsMax);
  for (const std::uint64_t slab : frame->slab_bytes) FRESHET_CHECK(slab > 0 && slab <= std::uint64_t{1} << 50);
  return 0;
}
