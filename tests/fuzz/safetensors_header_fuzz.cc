// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"
#include "core/safetensors/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {

/// The first two bytes are the size of the data; the rest is the header.
std::vector<Input> seeds() {
  return {
      input_of(std::string_view("\0\0{}", 4)),
      input_of(std::string("\x0e\0", 2) +
               R"({"__metadata__":{"format":"pt","k":"v"},"a.w":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},)"
               R"("e":{"dtype":"F64","shape":[0],"data_offsets":[12,12]},)"
               R"("b":{"dtype":"BOOL","shape":[2],"data_offsets":[12,14]}}   )"),
  };
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | (std::uint64_t{data[1]} << 8);
  const auto header = freshet::parse_safetensors_header(freshet::fuzz::text_of_input(data + 2, size - 2), data_bytes);
  if (!header) return 0;
  std::uint64_t covered = 0;
  for (const auto& entry : header->entries) {
    FRESHET_CHECK(entry.begin == covered && entry.end - entry.begin == entry.spec.bytes());
    covered = entry.end;
  }
  FRESHET_CHECK(covered == data_bytes);
  return 0;
}
