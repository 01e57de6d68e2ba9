// SPDX-License-Identifier: Apache-2.0
#include "repo/local/match/kept_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

namespace freshet {
namespace {

/// Any graph that build() takes: placeholders, calls with and without tensors, calls with many inputs.
std::shared_ptr<const MatchGraph> random_kept_graph(std::mt19937_64& random) {
  MatchGraph::Parts parts;
  parts.input_starts.push_back(0);
  const std::size_t vertices = random() % 60;
  for (std::size_t i = 0; i < vertices; ++i) {
    MatchGraph::Vertex vertex;
    for (auto& byte : vertex.slot.bytes) byte = static_cast<std::uint8_t>(random());
    const std::size_t inputs = i == 0 ? 0 : random() % std::min<std::size_t>(i, 5);
    for (std::size_t input = 0; input < inputs; ++input)
      parts.inputs.push_back(static_cast<std::uint32_t>(random() % i));
    vertex.is_input = inputs == 0 && random() % 2 == 0;
    vertex.parametric = !vertex.is_input && random() % 2 == 0;
    if (vertex.parametric) vertex.bytes = random() >> (8 + random() % 56);
    parts.vertices.push_back(vertex);
    parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
  }
  const auto graph = MatchGraph::build(std::move(parts));
  EXPECT_TRUE(graph) << graph.error().message();
  return *graph;
}

class KeptGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::cout << "seed " << kSeed << "\n";
    for (std::uint64_t i = 0; i < 50; ++i) {
      graphs_.push_back(random_kept_graph(random_));
      text_ += encode_kept_graph(digest(i), *graphs_.back());
      ends_.push_back(text_.size());
    }
  }
  static Digest digest(std::uint64_t number) { return {.low = number * 7, .high = ~number}; }
  /// How many of the first graphs are found, each as it was; nothing of the rest is.
  std::size_t found(const KeptGraphs& kept) const {
    std::size_t count = 0;
    for (std::uint64_t i = 0; i < graphs_.size(); ++i) {
      const auto graph = kept.find(digest(i));
      if (graph == nullptr) continue;
      EXPECT_EQ(graph->parts(), graphs_[i]->parts());
      EXPECT_EQ(count, i) << "one before it is missing";
      ++count;
    }
    return count;
  }

  static constexpr std::uint64_t kSeed = 20'261'127;
  std::mt19937_64 random_{kSeed};
  std::vector<std::shared_ptr<const MatchGraph>> graphs_;
  std::vector<std::size_t> ends_;
  std::string text_;
};

TEST_F(KeptGraphsTest, ComeBackAsTheyWere) {
  const KeptGraphs kept(text_);
  EXPECT_TRUE(kept.is_whole());
  EXPECT_EQ(kept.bytes(), text_.size());
  EXPECT_EQ(found(kept), graphs_.size());
  EXPECT_EQ(kept.find(digest(1000)), nullptr);
  EXPECT_EQ(kept.entry(digest(3)), text_.substr(ends_[2], ends_[3] - ends_[2]));
}

TEST_F(KeptGraphsTest, ATextThatWasCutHasTheWholeEntriesBeforeTheCut) {
  for (std::size_t cut = 0; cut <= text_.size(); cut += 1 + random_() % 40) {
    const KeptGraphs kept(text_.substr(0, cut));
    const auto whole = static_cast<std::size_t>(std::ranges::upper_bound(ends_, cut) - ends_.begin());
    EXPECT_EQ(found(kept), whole) << "cut at " << cut;
    EXPECT_EQ(kept.bytes(), whole == 0 ? 0 : ends_[whole - 1]);
    EXPECT_EQ(kept.is_whole(), kept.bytes() == cut);
  }
}

TEST_F(KeptGraphsTest, AFlippedBitHidesItsEntryAndThoseBehind) {
  for (int i = 0; i < 500; ++i) {
    std::string text = text_;
    const std::size_t at = random_() % text.size();
    text[at] = static_cast<char>(text[at] ^ (1 << random_() % 8));
    const KeptGraphs kept(text);
    const auto entry = static_cast<std::size_t>(std::ranges::upper_bound(ends_, at) - ends_.begin());
    EXPECT_EQ(found(kept), entry) << "bit in byte " << at;
    EXPECT_FALSE(kept.is_whole());
  }
}

// A seal is no secret: what stands under it is checked as any graph from outside.
TEST_F(KeptGraphsTest, ASealedEntryThatIsNoGraphIsNone) {
  const auto sealed = [](std::string graph) {
    std::string entry(20, '\0');
    store_little_endian(reinterpret_cast<std::byte*>(entry.data()) + 16, static_cast<std::uint32_t>(graph.size()));
    entry += graph;
    const Digest seal = plain_xxh3_of(bytes_of(entry.data(), entry.size()));
    std::byte bytes[16];
    store_little_endian(bytes, seal.low);
    store_little_endian(bytes + 8, seal.high);
    return entry.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
  };
  const std::string slot(16, 's');
  const std::vector<std::string> graphs = {
      "",                                                                  // No count.
      "\xff\xff\xff\xff\x0f",                                              // More calls than bytes.
      "\x01",                                                              // A call without a slot.
      "\x01" + slot,                                                       // Without a head.
      "\x01" + slot + "\x04",                                              // An input that is missing.
      "\x01" + slot + "\x04\x01",                                          // An input before the first call.
      "\x01" + slot + std::string("\x04\0", 2),                            // Itself.
      "\x01" + slot + "\x02",                                              // Parametric, without bytes.
      "\x01" + slot + "\x03\x01",                                          // A placeholder with tensors.
      "\x02" + slot + std::string("\0", 1) + slot + std::string("\0", 1),  // A slot that comes twice.
      "\x01" + slot + std::string("\0\0", 2),                              // A byte more.
      "\x01" + slot + std::string(9, '\xff') + "\x7f",                     // As many inputs as a number can say.
  };
  for (const std::string& graph : graphs) {
    const KeptGraphs kept(sealed(graph));
    EXPECT_TRUE(kept.is_whole());
    EXPECT_EQ(kept.find({}), nullptr) << testing::PrintToString(graph);
  }
  EXPECT_NE(KeptGraphs(sealed("\x01" + slot + std::string("\0", 1))).find({}), nullptr);
}

}  // namespace
}  // namespace freshet
