// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Architectures and catalogs for the tests of the match index, and EvoStore's Algorithm 1 (HPDC'24, section 4.2) to
/// judge its answers by. Shares no code with the index, nor with what computes slot ids.

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "repo/match/query.h"
#include "repo/match/structure_index.h"

namespace freshet {

/// A layer call: what it computes, from which earlier calls.
struct TestCall {
  int label = 0;  ///< Below 2: an input placeholder, if it has no inputs.
  std::vector<std::uint32_t> inputs;
  bool operator==(const TestCall&) const = default;
};
using TestNet = std::vector<TestCall>;

inline bool is_placeholder(const TestCall& call) { return call.label < 2 && call.inputs.empty(); }
inline bool is_parametric(const TestCall& call) { return !is_placeholder(call) && call.label % 3 != 0; }
inline std::uint64_t bytes_of_call(const TestCall& call) {
  return is_parametric(call) ? std::uint64_t{4} << (call.label % 7) : 0;
}

/// Gives equal computations equal ids, by a table of all that it ever saw.
class TestSlots {
 public:
  std::vector<std::uint64_t> of(const TestNet& net) {
    std::vector<std::uint64_t> ids;
    std::map<std::pair<int, std::vector<std::uint64_t>>, std::uint64_t> seen;
    for (const TestCall& call : net) {
      std::vector<std::uint64_t> inputs;
      for (const std::uint32_t input : call.inputs) inputs.push_back(ids[input]);
      const std::uint64_t k = seen[{call.label, inputs}]++;
      ids.push_back(known_.try_emplace({call.label, inputs, k}, known_.size()).first->second);
    }
    return ids;
  }

  std::shared_ptr<const MatchGraph> graph_of(const TestNet& net) {
    MatchGraph::Parts parts;
    parts.input_starts.push_back(0);
    const std::vector<std::uint64_t> ids = of(net);
    for (std::size_t i = 0; i < net.size(); ++i) {
      parts.vertices.push_back({.slot = slot(ids[i]),
                                .is_input = is_placeholder(net[i]),
                                .parametric = is_parametric(net[i]),
                                .bytes = bytes_of_call(net[i])});
      parts.inputs.insert(parts.inputs.end(), net[i].inputs.begin(), net[i].inputs.end());
      parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
    }
    auto graph = MatchGraph::build(std::move(parts));
    FRESHET_CHECK(graph.has_value());
    return *graph;
  }

 private:
  static SlotId slot(std::uint64_t id) {
    std::mt19937_64 random(id * 2 + 1);
    const std::uint64_t halves[2] = {random(), random()};
    SlotId slot;
    std::memcpy(slot.bytes.data(), halves, sizeof halves);
    return slot;
  }
  std::map<std::tuple<int, std::vector<std::uint64_t>, std::uint64_t>, std::uint64_t> known_;
};

/// A net whose vertices are known by their slots: what Algorithm 1 works on.
struct LabelledNet {
  std::map<std::uint64_t, std::set<std::uint64_t>> inputs;  ///< By slot; distinct.
  std::map<std::uint64_t, std::set<std::uint64_t>> children;
  std::map<std::uint64_t, TestCall> calls;

  LabelledNet(const TestNet& net, const std::vector<std::uint64_t>& ids) {
    for (std::size_t i = 0; i < net.size(); ++i) {
      calls[ids[i]] = net[i];
      inputs[ids[i]];
      for (const std::uint32_t input : net[i].inputs) {
        inputs[ids[i]].insert(ids[input]);
        children[ids[input]].insert(ids[i]);
      }
    }
  }
};

/// Algorithm 1, with every vertex without inputs as a root, and a root checked like any other vertex.
inline LcpSize algorithm_1(const LabelledNet& query, const LabelledNet& ancestor) {
  std::deque<std::uint64_t> frontier;
  std::map<std::uint64_t, std::size_t> visits;
  for (const auto& [vertex, inputs] : query.inputs) {
    const auto same = ancestor.inputs.find(vertex);
    if (inputs.empty() && same != ancestor.inputs.end() && same->second.empty()) frontier.push_back(vertex);
  }
  LcpSize prefix;
  for (; !frontier.empty(); frontier.pop_front()) {
    const std::uint64_t vertex = frontier.front();
    const TestCall& call = query.calls.at(vertex);
    if (!is_placeholder(call)) {
      ++prefix.layers;
      prefix.parametric_layers += is_parametric(call) ? 1 : 0;
      prefix.bytes += bytes_of_call(call);
    }
    const auto children = query.children.find(vertex);
    const auto theirs = ancestor.children.find(vertex);
    if (children == query.children.end() || theirs == ancestor.children.end()) continue;
    for (const std::uint64_t child : children->second) {
      if (!theirs->second.contains(child)) continue;
      const std::size_t in_degree = std::max(query.inputs.at(child).size(), ancestor.inputs.at(child).size());
      if (++visits[child] == in_degree) frontier.push_back(child);
    }
  }
  return prefix;
}

/// A net of `calls` calls: one or two placeholders, then calls of a few kinds that read one or two of the last ones, so
/// that nets share prefixes, hold equal siblings, and read one input twice.
inline TestNet random_net(std::mt19937_64& random, std::size_t calls, int labels) {
  TestNet net = {{.label = 0}};
  if (random() % 3 == 0) net.push_back({.label = 1});
  while (net.size() < calls) {
    TestCall call{.label = 2 + static_cast<int>(random() % static_cast<unsigned>(labels))};
    const std::size_t inputs = random() % 8 == 0 ? 0 : 1 + random() % 2;
    for (std::size_t i = 0; i < inputs; ++i) {
      call.inputs.push_back(
          static_cast<std::uint32_t>(net.size() - 1 - random() % std::min<std::size_t>(net.size(), 3)));
    }
    net.push_back(std::move(call));
  }
  return net;
}

/// One call changed, one added, or the tail cut off and grown anew.
inline TestNet mutated(TestNet net, std::mt19937_64& random, int labels) {
  const auto label = 2 + static_cast<int>(random() % static_cast<unsigned>(labels));
  const std::size_t at = random() % net.size();
  switch (random() % 3) {
    case 0:
      if (!is_placeholder(net[at])) net[at].label = label;
      break;
    case 1: net.push_back({.label = label, .inputs = {static_cast<std::uint32_t>(at)}}); break;
    default: {
      const std::size_t whole = net.size();
      net.resize(std::max<std::size_t>(at, 1));
      while (net.size() < whole) {
        net.push_back({.label = 2 + static_cast<int>(random() % static_cast<unsigned>(labels)),
                       .inputs = {static_cast<std::uint32_t>(random() % net.size())}});
      }
    }
  }
  return net;
}

}  // namespace freshet
