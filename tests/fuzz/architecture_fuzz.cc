// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"
#include "core/model/graph.h"
#include "core/model/sealed_buffer.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {
namespace {

constexpr std::string_view kGraph =
    R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input","config":{"shape":[null,8]}},)"
    R"({"name":"a","class":"Dense","framework_config":"D","inputs":["x"],"tensors":{"w":{"dtype":"f32","shape":[8,4]},)"
    R"("v":{"dtype":"u8","shape":[2],"key":"k","role":"buffer","slice":{"global_shape":[4],"offset":[2],"parts":2}}}},)"
    R"({"name":"b","class":"Dense","inputs":[["a",1]],"tensors_of":"a","commutative":true}],"outputs":["b"],)"
    R"("framework_config":"{}","more":[1,2.5]})";

/// What was accepted must be writable as a graph file that means the same.
void decode_and_rewrite(Bytes bytes) {
  const auto decoded = decode_architecture(bytes);
  if (!decoded) return;
  const auto rebuilt = Architecture::build((*decoded)->parts());
  FRESHET_CHECK(rebuilt.has_value());
  const auto reread = parse_graph_json(to_graph_json(**decoded));
  FRESHET_CHECK(reread.has_value());
  FRESHET_CHECK((*reread)->digest() == (*rebuilt)->digest());
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> seeds;
  for (const auto& architecture :
       {parse_graph_json(kGraph), Architecture::guess_chain({{.name = "a.w", .shape = {4}}, {.name = "b"}})}) {
    const Bytes encoded = (*architecture)->encoded();
    seeds.emplace_back(encoded.begin(), encoded.end() - kSealBytes);
  }
  return seeds;
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const freshet::Bytes bytes = freshet::fuzz::bytes_of_input(data, size);
  freshet::fuzz::decode_and_rewrite(bytes);
  freshet::fuzz::decode_and_rewrite(freshet::seal(bytes));
  return 0;
}
