// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/model/graph.h"

namespace freshet {
namespace {

constexpr std::string_view kTiny = R"({"freshet_graph": 1, "name": "tiny",
 "layers": [
  {"name": "x",  "class": "Input",  "config": {"dtype": "f32", "shape": [null, 8]}, "inputs": []},
  {"name": "a",  "class": "Dense",  "config": {"units": 4}, "inputs": ["x"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [8, 4]}, "bias": {"dtype": "f32", "shape": [4]}}},
  {"name": "b",  "class": "Dense",  "config": {"units": 4}, "inputs": ["x"], "tensors_of": "a"},
  {"name": "s",  "class": "Add",    "config": {}, "inputs": ["a", ["b", 0]]}],
 "outputs": ["s"]})";

std::shared_ptr<const Architecture> parse(std::string_view json) {
  auto architecture = parse_graph_json(json);
  EXPECT_TRUE(architecture) << architecture.error().message();
  return architecture ? *architecture : nullptr;
}

/// A graph of the given layers, without the quotes that JSON asks for.
std::string graph(std::string layers, std::string_view rest = "") {
  for (char& c : layers) {
    if (c == '\'') c = '"';
  }
  return R"({"freshet_graph":1,"layers":[)" + layers + "]" + std::string(rest) + "}";
}

std::string error_of(std::string_view json) {
  const auto architecture = parse_graph_json(json);
  if (architecture) return "accepted";
  EXPECT_EQ(architecture.error().code(), Code::invalid_argument);
  EXPECT_EQ(architecture.error().message().find('\n'), std::string::npos);
  EXPECT_LT(architecture.error().message().size(), 600u);
  return architecture.error().message();
}

void expect_error(std::string_view json, std::string_view part) {
  const std::string message = error_of(json);
  EXPECT_NE(message.find(part), std::string::npos) << "got: " << message << "\nfor: " << json.substr(0, 300);
}

TEST(GraphJson, ReadsTheExample) {
  const auto tiny = parse(kTiny);
  ASSERT_TRUE(tiny);
  EXPECT_EQ(tiny->name(), "tiny");
  ASSERT_EQ(tiny->tensors().size(), 2u);
  EXPECT_EQ(tiny->tensors()[0].name, "a.kernel");
  EXPECT_EQ(tiny->tensors()[1].name, "a.bias");
  EXPECT_EQ(tiny->bytes(), (8 * 4 + 4) * 4u);
  ASSERT_EQ(tiny->layers().size(), 4u);
  EXPECT_EQ(tiny->layers()[2].tensors_of, 1u);
  EXPECT_EQ(tiny->layers()[3].inputs, (std::vector<LayerInput>{{1, 0}, {2, 0}}));
  EXPECT_EQ(tiny->parts().outputs, (std::vector<LayerInput>{{3, 0}}));
}

TEST(GraphJson, RoundTripsEverything) {
  const std::string full = graph(
      R"({'name':'x','class':'Input'},)"
      R"({'name':'a','class':'k.Dense','framework_config':'Dense(\n)','inputs':[['x',3]],'commutative':true,)"
      R"('tensors':{'z':{'dtype':'bf16','shape':[2,4],'key':'other','role':'buffer'},)"
      R"('a':{'dtype':'bool','shape':[],'slice':{'global_shape':[],'offset':[],'parts':2}}}},)"
      R"({'name':'b','class':'k.Dense','config':{'b':1e21,'a':[1.0,18446744073709551616,9007199254740993]},'tensors_of':'a'},)"
      R"({'name':'c','class':'k.Dense','tensors_of':'b','inputs':['b','a','a']})",
      R"(,"outputs":["c",["b",7]],"made_by":{"b":1,"a":[null,"é"]},"framework_config":"{}","guessed":true,)"
      R"("tensor_order":["a.a","other"],"another":2)");
  const auto first = parse(full);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->tensors()[0].name, "a.a");
  EXPECT_EQ(first->layers()[1].tensors, (std::vector<LayerTensor>{{"z", 1}, {"a", 0}}));
  EXPECT_EQ(first->layers()[2].config, R"({"a":[1,"18446744073709551616","9007199254740993"],"b":1e+21})");
  EXPECT_EQ(first->layers()[3].tensors_of, 1u) << "resolved to the first call";
  EXPECT_EQ(first->parts().extra, R"({"made_by":{"b":1,"a":[null,"é"]},"another":2})");
  EXPECT_TRUE(first->parts().guessed);

  const std::string text = to_graph_json(*first);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto second = parse(text);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->digest(), first->digest());
  EXPECT_EQ(to_graph_json(*second), text);
}

TEST(GraphJson, AGuessedChainRoundTrips) {
  const auto chain = Architecture::guess_chain({{.name = "b.w", .shape = {2}},
                                                {.name = "a.w", .shape = {2}},
                                                {.name = "b.v", .dtype = DType::u8, .shape = {0}},
                                                {.name = "alone"},
                                                {.name = ".hidden"},
                                                {.name = "trailing."}});
  ASSERT_TRUE(chain) << chain.error().message();
  const auto again = parse(to_graph_json(**chain));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->digest(), (*chain)->digest());
}

TEST(GraphJson, AbsentEqualsEmpty) {
  const auto terse = parse(graph("{'name':'f','class':'F'}"));
  const auto wordy = parse(graph("{'name':'f','class':'F','config':{},'inputs':[],'tensors':{}}", R"(,"outputs":[])"));
  EXPECT_EQ(terse->digest(), wordy->digest());
}

TEST(GraphJson, RefusesBadFiles) {
  expect_error("", "parse error");
  expect_error("[]", "JSON object");
  expect_error("{}", "freshet_graph");
  expect_error(R"({"freshet_graph":2})", "freshet_graph");
  expect_error(R"({"freshet_graph":1,"freshet_graph":1})", "duplicate key freshet_graph");
  expect_error(R"({"freshet_graph":1,"layers":{}})", "layers");
  expect_error(R"({"freshet_graph":1})", "layers is missing or empty");
  expect_error(R"({"freshet_graph":1,"layers":[],"outputs":[]})", "layers is missing or empty");
  expect_error(R"({"freshet_graph":1,"name":7})", "name");
  expect_error(R"({"freshet_graph":1,"layers":[)", "parse error");
  expect_error("{\"freshet_graph\":1,\"name\":\"\xff\"}", "UTF-8");
  expect_error(R"({"freshet_graph":1,"outputs":["x"]})", "outputs names x");
  expect_error(R"({"freshet_graph":1,"tensor_order":["x"]})", "tensor_order");
  expect_error(R"({"freshet_graph":1,"extra":)" + std::string(100000, '[') + std::string(100000, ']') + "}", "deeper");
  expect_error(R"({"freshet_graph":1,"number":1e999})", "overflow");
}

TEST(GraphJson, RefusesBadLayers) {
  expect_error(graph("7"), "layer number 1");
  expect_error(graph("{'class':'F'}"), "has no name");
  expect_error(graph("{'name':'f'}"), "layer f: has no class");
  expect_error(graph("{'name':'','class':'F'}"), "layer name is empty");
  expect_error(graph("{'name':'f','class':''}"), "class is empty");
  expect_error(graph("{'name':'f','class':'F','color':1}"), "layer f: unknown key color");
  expect_error(graph("{'name':'f','class':'F'},{'name':'f','class':'F'}"), "taken");
  expect_error(graph("{'name':'f','class':'F','config':[]}"), "config");
  expect_error(graph("{'name':'f','class':'F','config':{'a':1,'a':1}}"), "duplicate key a");
  expect_error(graph("{'name':'f','class':'F','inputs':['f']}"), "layer f: inputs names f");
  expect_error(graph("{'name':'f','class':'F','inputs':['g']},{'name':'g','class':'F'}"), "topological");
  expect_error(graph("{'name':'f','class':'F','inputs':[['g',0]]}"), "inputs names g");
  expect_error(graph("{'name':'g','class':'F'},{'name':'f','class':'F','inputs':[['g',-1]]}"), "port");
  expect_error(graph("{'name':'g','class':'F'},{'name':'f','class':'F','inputs':[['g',4294967296]]}"), "port");
  expect_error(graph("{'name':'g','class':'F'},{'name':'f','class':'F','inputs':[['g',0,0]]}"), "[name, port]");
  expect_error(graph("{'name':'f','class':'F','tensors_of':'f'}"), "tensors_of names f");
  expect_error(graph("{'name':'f','class':'F','commutative':1}"), "commutative");
}

TEST(GraphJson, RefusesBadTensors) {
  const auto tensors = [](const std::string& text) { return graph("{'name':'f','class':'F','tensors':" + text + "}"); };
  expect_error(tensors("[]"), "tensors");
  expect_error(tensors("{'w':{}}"), "layer f: tensor w: has no dtype");
  expect_error(tensors("{'w':{'dtype':'f33','shape':[]}}"), "unknown dtype f33");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[1.5]}}"), "extent");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[-1]}}"), "extent");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[18446744073709551615]}}"), "overflow");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[18446744073709551616]}}"), "extent");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[],'stride':1}}"), "unknown key stride");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[],'role':'king'}}"), "unknown role king");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[2],'slice':{'global_shape':[1],'offset':[0]}}}"), "slice");
  expect_error(tensors("{'w':{'dtype':'f32','shape':[],'key':'k'},'v':{'dtype':'f32','shape':[],'key':'k'}}"),
               "two tensors are named k");
  expect_error(
      tensors("{'w':{'dtype':'u8','shape':[4611686018427387904]},'v':{'dtype':'u8','shape':[4611686018427387904]}}"),
      "size overflows");
  expect_error(graph("{'name':'g','class':'F'},{'name':'f','class':'F','tensors_of':'g','tensors':{'w':{'dtype':'u8','"
                     "shape':[]}}}"),
               "both");
}

TEST(GraphJson, ATensorThatNoFileCanHoldIsRefused) {
  const std::string tensor = "{'name':'a','class':'c','tensors':{'w':{'dtype':'u8','shape':[],'key':'__metadata__'}}}";
  EXPECT_NE(error_of(graph(tensor)).find("a tensor cannot be named __metadata__"), std::string::npos);
  EXPECT_FALSE(Architecture::guess_chain({{.name = "__metadata__"}}));
  EXPECT_TRUE(Architecture::guess_chain({{.name = "__metadata__.w"}}));
}

TEST(GraphJson, AMillionTensorsAreOneError) {
  std::string tensors;
  for (int i = 0; i < 1'000'000; ++i) {
    tensors += (i == 0 ? "'" : ",'") + std::to_string(i) + "':{'dtype':'u8','shape':[]}";
  }
  expect_error(graph("{'name':'f','class':'F','tensors':{" + tensors + "}}"), "more than 262144 tensors");
}

}  // namespace
}  // namespace freshet
