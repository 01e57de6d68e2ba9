// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/format.h"
#include "core/model/graph.h"
#include "core/model/slot_id.h"

namespace freshet {
namespace {

/// Layers in JSON with ' for ".
std::shared_ptr<const Architecture> architecture_of(std::string layers) {
  for (char& c : layers) {
    if (c == '\'') c = '"';
  }
  auto architecture = parse_graph_json(R"({"freshet_graph":1,"layers":[)" + layers + "]}");
  EXPECT_TRUE(architecture) << architecture.error().message();
  return *architecture;
}

std::vector<SlotId> slots(const std::string& layers) {
  const auto architecture = architecture_of(layers);
  return {architecture->slots().begin(), architecture->slots().end()};
}

const std::string kX = "{'name':'x','class':'Input','config':{'dtype':'f32','shape':[null,8]}},";

/// Computed apart from this code, from the prose in core/FORMAT.md, with Python's hashlib. They change only together
/// with the version in the domain: repositories hold these ids.
TEST(SlotId, KnownValues) {
  const auto architecture = architecture_of(
      "{'name':'x','class':'Input','config':{'dtype':'f32','shape':[null,8]}},"
      "{'name':'y','class':'keras.Input','config':{'shape':[null,8],'dtype':'f32'}},"
      "{'name':'q','class':'Dense','config':{'units':4.0},'inputs':['x'],'tensors':{"
      "'kernel':{'dtype':'f32','shape':[8,4]},'bias':{'dtype':'bf16','shape':[4],'key':'other'}}},"
      "{'name':'k','class':'Dense','config':{'units':4},'inputs':['x'],'tensors':{"
      "'bias':{'dtype':'bf16','shape':[4]},'kernel':{'dtype':'f32','shape':[8,4]}}},"
      "{'name':'again','class':'Dense','config':{'units':4},'inputs':[['y',2]],'tensors_of':'k'},"
      "{'name':'third','class':'Dense','config':{'units':4},'inputs':['k'],'tensors_of':'again'},"
      "{'name':'sum','class':'keras.layers.Add','inputs':['third','again','q']},"
      "{'name':'cat','class':'Concat','config':{'axis':-1,'\\u20ac':'\\ud83d\\ude00','\\ufb33':0.5},'inputs':['sum',['"
      "q',1]]}");
  const std::map<std::string, std::string> known = {
      {"x", "33116b88534dccb2175c35d75c7e128d"},     {"y", "81e1b8c1d8de37979f2e9c8c0edbb5cd"},
      {"q", "86a8c0a41fa446520d01244da0426803"},     {"k", "99295f4ba58465c88adddfa1f90e0161"},
      {"again", "0e2fafc8d1d081bb11e7bb654306ca59"}, {"third", "3852dbcac9b4b8369bdfe62aac600783"},
      {"sum", "5d6acd9e7f8987f5aab28374a4dc12c8"},   {"cat", "f94f0f99a05d7a24974d32ced1eec9b5"}};
  for (std::size_t i = 0; i < architecture->layers().size(); ++i) {
    const std::string& name = architecture->layers()[i].name;
    EXPECT_EQ(to_hex(architecture->slots()[i]), known.at(name)) << name;
  }
}

TEST(SlotId, EqualSiblingsGetIdsOfTheirOwn) {
  const std::string dense = "'class':'Dense','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[8]}}}";
  const auto ids = slots(kX + "{'name':'q'," + dense + ",{'name':'k'," + dense + ",{'name':'v'," + dense);
  EXPECT_EQ(std::set<SlotId>(ids.begin(), ids.end()).size(), 4u);
}

TEST(SlotId, NamesKeysAndTheFlagAreNotIdentity) {
  const auto one = slots(kX + "{'name':'a','class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[8]}}}");
  const auto two = slots(
      "{'name':'in','class':'Input','config':{'shape':[null,8],'dtype':'f32'}},"
      "{'name':'b','class':'D','framework_config':'D()','inputs':['in'],'commutative':true,"
      "'tensors':{'w':{'dtype':'f32','shape':[8],'key':'k','role':'buffer'}}}");
  EXPECT_EQ(one, two);
}

TEST(SlotId, EverythingStructuralIsIdentity) {
  const std::vector<std::string> variants = {
      "'class':'D','inputs':['x']}",
      "'class':'E','inputs':['x']}",
      "'class':'D','inputs':[]}",
      "'class':'D','inputs':['x','x']}",
      "'class':'D','inputs':[['x',1]]}",
      "'class':'D','inputs':['x'],'config':{'u':1}}",
      "'class':'D','inputs':['x'],'config':{'u':'1'}}",
      "'class':'D','inputs':['x'],'config':{'u':[1]}}",
      "'class':'D','inputs':['x'],'config':{'u':null}}",
      "'class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[8]}}}",
      "'class':'D','inputs':['x'],'tensors':{'v':{'dtype':'f32','shape':[8]}}}",
      "'class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f16','shape':[8]}}}",
      "'class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[8,1]}}}",
      "'class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[]}}}",
      "'class':'D','inputs':['x'],'tensors_of':'x'}",
  };
  std::set<SlotId> distinct;
  for (const std::string& variant : variants) distinct.insert(slots(kX + "{'name':'a'," + variant).back());
  EXPECT_EQ(distinct.size(), variants.size());
}

TEST(SlotId, HoweverTensorsAreCutTheyAreOneArchitecture) {
  const auto graph_of = [](const std::string& tensor) {
    return architecture_of(kX + "{'name':'a','class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32'," + tensor +
                           "}}}");
  };
  const auto whole = graph_of("'shape':[8,4]");
  const std::vector<std::shared_ptr<const Architecture>> cut = {
      graph_of("'shape':[4,4],'slice':{'global_shape':[8,4],'offset':[0,0],'parts':2}"),
      graph_of("'shape':[4,4],'slice':{'global_shape':[8,4],'offset':[4,0],'parts':2}"),
      graph_of("'shape':[8,1],'slice':{'global_shape':[8,4],'offset':[0,3],'parts':4}"),
      graph_of("'shape':[8,4],'slice':{'global_shape':[8,4],'offset':[0,0],'parts':1}")};
  // Whether the cache of configs is asked or not.
  ConfigHashes known;
  const auto ids_of = [&known](const Architecture& graph) {
    const auto cached = compute_slots(graph.layers(), graph.tensors(), known);
    EXPECT_TRUE(cached);
    EXPECT_TRUE(std::ranges::equal(*cached, graph.slots()));
    return std::vector<SlotId>(graph.slots().begin(), graph.slots().end());
  };
  const std::vector<SlotId> ids = ids_of(*whole);
  for (const auto& graph : cut) {
    EXPECT_EQ(ids_of(*graph), ids);
    EXPECT_NE(graph->digest(), whole->digest()) << "what is stored still says how it is cut";
    EXPECT_FALSE(same_form(graph->tensors()[0], whole->tensors()[0]));
  }
  EXPECT_FALSE(same_form(cut[0]->tensors()[0], cut[1]->tensors()[0])) << "of one shape, and other bytes";
  EXPECT_NE(ids_of(*graph_of("'shape':[4,4]")), ids);
  EXPECT_NE(ids_of(*graph_of("'shape':[8,4],'slice':{'global_shape':[16,4],'offset':[0,0],'parts':2}")), ids);
}

TEST(SlotId, CommutativeLayersForgetTheOrderOfTheirInputs) {
  const std::string pair = "{'name':'x','class':'Input'},{'name':'a','class':'A','inputs':['x']},";
  const auto id = [&pair](const std::string& layer) { return slots(pair + layer).back(); };
  for (const char* name : {"Add", "Multiply", "Average", "Maximum", "Minimum", "keras.layers.Add", "my.Minimum"}) {
    const std::string layer = format("{{'name':'s','class':'{}','inputs':", name);
    EXPECT_EQ(id(layer + "['x',['a',1]]}"), id(layer + "[['a',1],'x']}")) << name;
    EXPECT_NE(id(layer + "['x',['a',1]]}"), id(layer + "['a',['x',1]]}")) << name;
    EXPECT_EQ(id(layer + "['x','a'],'commutative':false}"), id(layer + "['a','x']}")) << "nothing undoes it";
  }
  for (const char* name : {"Subtract", "add", "AddN", "Add.x"}) {
    const std::string layer = format("{{'name':'s','class':'{}','inputs':", name);
    EXPECT_NE(id(layer + "['x','a']}"), id(layer + "['a','x']}")) << name;
    EXPECT_EQ(id(layer + "['x','a'],'commutative':true}"), id(layer + "['a','x'],'commutative':true}")) << name;
  }
}

TEST(SlotId, DeclaredOrderMattersAmongEqualSiblingsAlone) {
  const std::string a = "{'name':'a','class':'A','inputs':['x']}";
  const std::string b = "{'name':'b','class':'B','inputs':['x']}";
  const std::string x = "{'name':'x','class':'Input'},";
  const auto ab = slots(x + a + "," + b);
  const auto ba = slots(x + b + "," + a);
  EXPECT_EQ(ab[1], ba[2]);
  EXPECT_EQ(ab[2], ba[1]);
}

TEST(SlotId, InputsAreToldApartByTheirOrdinal) {
  const auto ids = slots("{'name':'x','class':'Input'},{'name':'f','class':'F'},{'name':'y','class':'Input'}");
  EXPECT_NE(ids[0], ids[2]);
  // An "Input" that has inputs is a layer like any other.
  const auto odd =
      slots("{'name':'x','class':'F'},{'name':'y','class':'Input','inputs':['x']},{'name':'z','class':'Input'}");
  EXPECT_EQ(odd[2], slots("{'name':'z','class':'Input'}")[0]);
}

TEST(SlotId, ASharedCallKnowsWhoseParametersItCalls) {
  const std::string two = "'class':'D','inputs':['x'],'tensors':{'w':{'dtype':'f32','shape':[8]}}},";
  const std::string head = kX + "{'name':'a'," + two + "{'name':'b'," + two;
  const auto of_a = slots(head + "{'name':'c','class':'D','inputs':['a'],'tensors_of':'a'}");
  const auto of_b = slots(head + "{'name':'c','class':'D','inputs':['a'],'tensors_of':'b'}");
  EXPECT_NE(of_a.back(), of_b.back());
  const auto chained = slots(head +
                             "{'name':'c','class':'D','inputs':['a'],'tensors_of':'b'},"
                             "{'name':'d','class':'D','inputs':['c'],'tensors_of':'c'}");
  const auto direct = slots(head +
                            "{'name':'c','class':'D','inputs':['a'],'tensors_of':'b'},"
                            "{'name':'d','class':'D','inputs':['c'],'tensors_of':'b'}");
  EXPECT_EQ(chained.back(), direct.back());
}

TEST(SlotId, LargeGraphsAreLinear) {
  Architecture::Parts parts;
  const std::uint32_t layers = 200'000;
  for (std::uint32_t i = 0; i < layers; ++i) {
    Layer layer{.name = format("l{}", i), .class_name = "F", .config = "{\"a\":1}"};
    if (i % 3 == 1) layer.inputs = {{i - 1, 0}, {i / 2, 0}};  // Two thirds are equal siblings.
    if (i > 0) layer.tensors_of = i - 1;                      // One long chain to the first call.
    parts.layers.push_back(std::move(layer));
  }
  const auto built = Architecture::build(std::move(parts));
  ASSERT_TRUE(built) << built.error().message();
  EXPECT_EQ((*built)->layers().back().tensors_of, 0u);
  const auto ids = (*built)->slots();
  EXPECT_EQ(std::set<SlotId>(ids.begin(), ids.end()).size(), layers);
}

}  // namespace
}  // namespace freshet
