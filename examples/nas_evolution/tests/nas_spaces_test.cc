// SPDX-License-Identifier: Apache-2.0
/// The search spaces: their networks are what they should be, and their slot ids those of the architectures.

#include "examples/nas_spaces/nas_spaces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/format.h"
#include "tests/support/refused.h"

namespace freshet::nas {
namespace {

std::vector<std::unique_ptr<Space>> all_spaces() {
  std::vector<std::unique_ptr<Space>> spaces;
  spaces.push_back(make_dense_skip_space());
  spaces.push_back(make_two_input_space());
  spaces.push_back(make_nas_bench_201_space());
  spaces.push_back(make_chain_space(15));
  spaces.push_back(make_star_space());
  return spaces;
}

std::shared_ptr<const Architecture> architecture_of(const Network& network, const Palette& palette) {
  auto architecture = to_architecture(network, palette, "candidate");
  EXPECT_TRUE(architecture) << architecture.error().message();
  return architecture ? *architecture : nullptr;
}

/// core/model/slot_id.h, which knows nothing of palettes, is the oracle.
TEST(NasSpaces, SlotIdsAreThoseOfTheArchitecture) {
  for (const auto& space : all_spaces()) {
    Random random(7);
    SlotHasher hasher;
    Network network;
    std::vector<SlotId> slots;
    for (int i = 0; i < 25; ++i) {
      space->build(random_genes(space->choices(), random), network);
      hasher.compute(network, space->palette(), slots);
      const auto architecture = architecture_of(network, space->palette());
      ASSERT_TRUE(architecture);
      ASSERT_TRUE(std::equal(slots.begin(), slots.end(), architecture->slots().begin(), architecture->slots().end()))
          << space->name() << ", network " << i;
      EXPECT_EQ(tensor_bytes(network, space->palette()), architecture->bytes());
    }
  }
}

TEST(NasSpaces, DuplicateSiblingsAndRepeatedInputsHaveIdsOfTheirOwn) {
  Palette palette;
  const std::uint32_t input = palette.add({.class_name = "Input"});
  const std::uint32_t dense = palette.add({.class_name = "Dense", .tensors = {{.name = "kernel", .shape = {4, 4}}}});
  const std::uint32_t add = palette.add({.class_name = "Add"});
  Network network;
  const std::uint32_t x = network.add(input, {});
  const std::uint32_t q = network.add(dense, {x});
  const std::uint32_t k = network.add(dense, {x});
  network.add(add, {q, k});
  network.add(add, {k, q});
  network.add(add, {q, q});
  std::vector<SlotId> slots;
  SlotHasher().compute(network, palette, slots);
  EXPECT_EQ(std::set<SlotId>(slots.begin(), slots.end()).size(), 6u);
  const auto architecture = architecture_of(network, palette);
  ASSERT_TRUE(architecture);
  EXPECT_TRUE(std::equal(slots.begin(), slots.end(), architecture->slots().begin()));
}

TEST(NasSpaces, DenseSkipIsTheSpaceThatThePaperDescribes) {
  const auto space = make_dense_skip_space();
  const Choices choices = space->choices();
  EXPECT_EQ(std::count(choices.begin(), choices.end(), 31), 10);
  EXPECT_EQ(std::count(choices.begin(), choices.end(), 2), 1 + 2 + 8 * 3);
  Network network;
  space->build(Genes(choices.size(), 0), network);
  EXPECT_EQ(network.size(), 2u) << "nothing but input and output";
  Random random(1);
  double calls = 0;
  for (int i = 0; i < 1000; ++i) {
    space->build(random_genes(choices, random), network);
    calls += static_cast<double>(network.size()) / 1000;
  }
  EXPECT_NEAR(calls, 40, 2);
}

TEST(NasSpaces, TwoInputNetworksHaveTwoInputsAndJoinThem) {
  const auto space = make_two_input_space();
  Random random(3);
  Network network;
  for (int i = 0; i < 50; ++i) {
    space->build(i == 0 ? Genes(space->choices().size(), 0) : random_genes(space->choices(), random), network);
    const auto architecture = architecture_of(network, space->palette());
    ASSERT_TRUE(architecture);
    EXPECT_EQ(std::count_if(architecture->layers().begin(), architecture->layers().end(), is_input), 2);
  }
}

TEST(NasSpaces, NasBench201HasAllItsNetworks) {
  const auto space = make_nas_bench_201_space();
  const Catalog catalog = whole_space(*space, 1);
  ASSERT_EQ(catalog.size(), 15625u);
  Network network;
  std::size_t most = 0;
  for (const CatalogModel& model : catalog) {
    space->build(model.genes, network);
    most = std::max(most, network.size());
  }
  // Stem 3, two residual blocks of 9, 15 cells of six 3-call edges and two sums, head 4.
  EXPECT_EQ(most, 3u + 2 * 9 + 15 * (6 * 3 + 2) + 4);
}

TEST(NasSpaces, AMutationChangesOneGene) {
  const auto space = make_dense_skip_space();
  Random random(11);
  const Genes genes = random_genes(space->choices(), random);
  std::set<Genes> seen;
  for (int i = 0; i < 2000; ++i) {
    const Genes other = mutated(genes, space->choices(), random);
    std::size_t differing = 0;
    for (std::size_t at = 0; at < genes.size(); ++at) {
      differing += genes[at] != other[at];
      ASSERT_LT(other[at], space->choices()[at]);
    }
    ASSERT_EQ(differing, 1u);
    seen.insert(other);
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(NasSpaces, TheOldestDropsOutAndQualityRises) {
  const auto space = make_dense_skip_space();
  const Landscape landscape(5);
  AgingEvolution evolution(space->choices(), {.population = 20, .sample = 5, .seed = 5});
  double first = 0;
  for (std::uint64_t id = 0; id < 600; ++id) {
    Genes genes = evolution.ask();
    const double quality = landscape.quality(genes);
    const auto dropped = evolution.tell({.id = id, .genes = std::move(genes), .quality = quality});
    ASSERT_EQ(dropped.has_value(), id >= 20);
    if (dropped) {
      ASSERT_EQ(dropped->id, id - 20);
    }
    if (id < 20) first += quality / 20;
  }
  double last = 0;
  for (const auto& member : evolution.population()) last += member.quality / 20;
  EXPECT_GT(last, first + 0.1);
}

/// What the benchmarks' tables say is of these very models, on whatever machine.
TEST(NasSpaces, CatalogsAreTheSameEverywhere) {
  const auto space = make_dense_skip_space();
  const auto digest = [](const Catalog& catalog) {
    std::string genes;
    for (const CatalogModel& model : catalog) genes.append(model.genes.begin(), model.genes.end());
    return to_hex(digest_of(freshet::bytes_of(genes.data(), genes.size())));
  };
  EXPECT_EQ(digest(random_catalog(*space, 1000, 1)), "644a7c40e29c54020c3ffb3343ce431c");
  EXPECT_EQ(digest(evolved_catalog(*space, 3000, {.seed = 1, .per_search = 2000})), "1b6866a605df9115259144d26845b850");
}

class CorpusFile {
 public:
  explicit CorpusFile(const std::string& text) {
    std::string folder = (std::filesystem::temp_directory_path() / "freshet-corpus-XXXXXX").string();
    folder_ = ::mkdtemp(folder.data());
    std::ofstream(path()) << text;
  }
  ~CorpusFile() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/graphs.jsonl"; }

 private:
  std::string folder_;
};

TEST(NasSpaces, ReadsACorpus) {
  const CorpusFile file(
      R"({"name": "net", "v": [["aa", [], 0, 0], ["bb", [0], 24, 0], ["bb", [1], 24, 1], ["cc", [1, 2], 0, 0]]})"
      "\n");
  const auto corpus = read_corpus(file.path());
  ASSERT_TRUE(corpus) << corpus.error().message();
  ASSERT_EQ(corpus->graphs.size(), 1u);
  const auto architecture = architecture_of(corpus->graphs[0].network, corpus->palette);
  ASSERT_TRUE(architecture);
  EXPECT_EQ(architecture->bytes(), 24u);
  EXPECT_TRUE(is_input(architecture->layers()[0]));
  EXPECT_EQ(architecture->layers()[3].inputs.size(), 2u);
}

TEST(NasSpaces, ACorpusThatIsNoneIsRefused) {
  for (const char* line : {"{", "[]", R"({"name": "n"})", R"({"name": "n", "v": [["aa", [0], 0, 0]]})",
                           R"({"name": "n", "v": [["aa", [-1], 0, 0]]})", R"({"name": "n", "v": [["aa", []]]})"}) {
    const CorpusFile file(std::string(line) + "\n");
    EXPECT_TRUE(is_refused(read_corpus(file.path()), Code::invalid_argument, "line 1")) << line;
  }
  EXPECT_EQ(read_corpus("/nonexistent/graphs.jsonl").error().code(), Code::not_found);
}

}  // namespace
}  // namespace freshet::nas
