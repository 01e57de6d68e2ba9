// SPDX-License-Identifier: Apache-2.0
#include "core/base/check.h"
#include "core/json/canonical_json.h"
#include "core/model/graph.h"
#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {

std::vector<Input> seeds() {
  return {
      input_of(R"({"freshet_graph":1,"layers":[]})"),
      input_of(
          R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input","config":{"shape":[null,8]}},)"
          R"({"name":"a","class":"k.Dense","inputs":["x"],"tensors":{"w":{"dtype":"f32","shape":[8,4]},)"
          R"("v":{"dtype":"u8","shape":[2],"key":"k","role":"buffer"}}},)"
          R"({"name":"b","class":"Add","inputs":[["a",1],"x"],"commutative":true},)"
          R"({"name":"c","class":"k.Dense","tensors_of":"a"}],"outputs":["b",["c",0]],"tensor_order":["k","a.w"]})"),
      input_of(R"({"freshet_graph":1.0,"extra":[1e21,-0.0,9007199254740993,"\ud83d\ude00",{"a":{"b":[]}}],)"
               R"("layers":[{"name":"f","class":"F","config":{"z":1,"a":[true,null,1e-7,18446744073709551616]}}]})"),
  };
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = freshet::fuzz::text_of_input(data, size);
  const auto canonical = freshet::canonical_json(text);
  if (canonical) FRESHET_CHECK(freshet::canonical_json(*canonical) == *canonical);
  const auto architecture = freshet::parse_graph_json(text);
  if (!architecture) return 0;
  const auto again = freshet::parse_graph_json(freshet::to_graph_json(**architecture));
  FRESHET_CHECK(again.has_value() && (*again)->digest() == (*architecture)->digest());
  FRESHET_CHECK(freshet::decode_architecture((*architecture)->encoded()).has_value());
  return 0;
}
