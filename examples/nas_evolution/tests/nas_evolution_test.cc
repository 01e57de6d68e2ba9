// SPDX-License-Identifier: Apache-2.0
/// The example examples/nas_evolution, and its parts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "examples/nas_evolution/search.h"
#include "repo/backend/backend.h"
#include "repo/cluster/providers.h"
#include "tests/repo/cluster/cluster_world.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet::nas {
namespace {

std::unique_ptr<Repository> memory_repository() {
  auto repository = Repository::open(make_memory_backend(), {});
  EXPECT_TRUE(repository) << repository.error().message();
  return repository ? std::move(*repository) : nullptr;
}

Candidate make_candidate(const Space& space, const Genes& genes, std::uint64_t seed) {
  Network network;
  space.build(genes, network);
  return Candidate(genes, to_architecture(network, space.palette(), "candidate").value(), seed);
}

std::vector<std::vector<std::byte>> bytes_of(const Candidate& candidate) {
  std::vector<std::vector<std::byte>> bytes;
  for (const TensorView& view : candidate.views(false)) bytes.emplace_back(view.data.begin(), view.data.end());
  return bytes;
}

const auto kNoWait = [](std::chrono::nanoseconds) {};

TEST(NasEvolution, AChildBeginsWithItsAncestorsLayersAndStoresTheRest) {
  const auto repository = memory_repository();
  const auto space = make_dense_skip_space();
  const SimulatedTrainer trainer({.seed = 1});
  Random random(1);
  Genes genes = random_genes(space->choices(), random);
  Candidate parent = make_candidate(*space, genes, 1);
  const auto first = evaluate(*repository, parent, trainer, 0, "parent", kNoWait);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->finished.own_bytes, parent.architecture()->bytes());

  genes[genes.size() - 4] = static_cast<std::uint8_t>((genes[genes.size() - 4] + 1) % 31);  // The last node's layer.
  Candidate child = make_candidate(*space, genes, 2);
  const auto begun = begin(*repository, child, "child");
  ASSERT_TRUE(begun) << begun.error().message();
  EXPECT_EQ(begun->ancestor, first->finished.version);
  EXPECT_EQ(repository->pins(begun->ancestor).value(), std::vector<std::string>{"child"});
  EXPECT_FALSE(repository->retire(begun->ancestor, {})) << "somebody learns from it";
  const auto shared = shared_tensors(*child.architecture(), *parent.architecture());
  ASSERT_FALSE(shared.empty());
  const auto parents = bytes_of(parent);
  const auto before = bytes_of(child);
  for (const SharedTensor& tensor : shared) {
    EXPECT_TRUE(child.frozen(tensor.ours));
    EXPECT_EQ(before[tensor.ours], parents[tensor.theirs]) << "read straight into the candidate's tensor";
  }
  const auto outcome = trainer.train(child, 1, begun->inherited_epochs);
  const auto after = bytes_of(child);
  for (std::uint32_t i = 0; i < child.tensors(); ++i) EXPECT_EQ(after[i] == before[i], child.frozen(i)) << i;
  const auto finished = finish(*repository, child, *begun, outcome, "child");
  ASSERT_TRUE(finished) << finished.error().message();
  EXPECT_EQ(finished->own_bytes + begun->read_bytes, child.architecture()->bytes());
  EXPECT_TRUE(repository->pins(begun->ancestor).value().empty());

  // What the repository says of the child is what was trained.
  ASSERT_TRUE(repository->retire(begun->ancestor, {}));
  ASSERT_TRUE(repository->gc({}, {}));
  const VersionRecord record = repository->get({.model = "child"}).value();
  EXPECT_EQ(record.manifest.ancestor_name, first->finished.version);
  for (std::uint32_t i = 0; i < child.tensors(); ++i) {
    std::vector<std::byte> read(after[i].size());
    ASSERT_TRUE(repository->read(record, std::vector<Repository::TensorRead>{{.tensor = i, .out = read}}));
    EXPECT_EQ(read, after[i]);
  }
}

TEST(NasEvolution, TheSameArchitectureTrainsItsLastTensor) {
  const auto repository = memory_repository();
  const auto space = make_dense_skip_space();
  const SimulatedTrainer trainer({.seed = 1});
  Random random(2);
  const Genes genes = random_genes(space->choices(), random);
  for (std::uint64_t id = 0; id < 3; ++id) {
    Candidate candidate = make_candidate(*space, genes, id);
    const auto evaluation = evaluate(*repository, candidate, trainer, id, "twin-" + std::to_string(id), kNoWait);
    ASSERT_TRUE(evaluation) << evaluation.error().message();
    EXPECT_GT(evaluation->finished.own_bytes, 0u);
    if (id > 0) {
      EXPECT_LT(evaluation->finished.own_bytes, evaluation->model_bytes / 10);
    }
  }
}

TEST(NasEvolution, ASearchKeepsItsPopulationAndNothingElse) {
  const auto repository = memory_repository();
  const auto space = make_dense_skip_space();
  SearchOptions options{.candidates = 60, .workers = 3};
  options.evolution = {.population = 10, .sample = 3, .seed = 3};
  options.trainer = {.epoch = std::chrono::microseconds(500), .seed = 3};
  const TemporaryFolder folder;
  const auto ledger = Ledger::open(folder / "ledger");
  ASSERT_TRUE(ledger) << ledger.error().message();
  options.ledger = &*ledger;
  Search search(*repository, *space, options);
  std::uint64_t told = 0;
  const auto summary = search.run([&told](const SearchSummary&, const Evaluation&) { ++told; });
  ASSERT_TRUE(summary) << summary.error().message();
  EXPECT_EQ(told, 60u);
  EXPECT_EQ(summary->candidates, 60u);
  EXPECT_LT(summary->own_bytes, summary->model_bytes);
  std::set<VersionName> kept;
  const std::vector<std::string> models = repository->models().value();
  for (const std::string& model : models) {
    const std::vector<LineageRow> rows = repository->versions(model).value();
    for (const LineageRow& row : rows) {
      EXPECT_TRUE(row.retired || repository->pins(row.version)->empty());
      if (!row.retired) kept.insert(row.version);
    }
  }
  // The population, and the best one where it is too old for it.
  EXPECT_THAT(kept.size(), testing::AnyOf(10u, 11u));
  EXPECT_EQ(summary->retired, 60u - kept.size());
  EXPECT_TRUE(repository->verify(std::nullopt, {}).value().corrupt.empty());

  // The ledger leaves the same ones.
  std::set<std::string> left;
  std::uint64_t stored = 0;
  std::ifstream lines(folder / "ledger");
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.contains("stored")) {
      ++stored;
      EXPECT_EQ(event["sha256"].get<std::string>().size(), 64u);
      left.insert(event["stored"].get<std::string>());
    } else {
      left.erase(event["retiring"].get<std::string>());
    }
  }
  EXPECT_EQ(stored, 60u);
  std::set<std::string> names;
  for (const VersionName& version : kept) names.insert(to_string(version));
  EXPECT_EQ(left, names);
}

TEST(NasEvolution, TheBestOneEverIsKeptUnderAnAlias) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto repository = memory_repository();
    const auto space = make_dense_skip_space();
    SearchOptions options{.candidates = 40, .workers = 3};
    options.evolution = {.population = 4, .sample = 2, .seed = seed};
    options.trainer = {.epoch = std::chrono::microseconds(100), .seed = seed};
    Search search(*repository, *space, options);
    double best_quality = 0;
    VersionName best;
    const auto summary = search.run([&](const SearchSummary&, const Evaluation& last) {
      if (last.outcome.quality <= best_quality) return;
      best_quality = last.outcome.quality;
      best = last.finished.version;
    });
    ASSERT_TRUE(summary) << summary.error().message();
    EXPECT_EQ(summary->best, best);
    EXPECT_TRUE(summary->best_is_named);
    ASSERT_TRUE(repository->get(best)) << "it was retired";
    std::uint64_t named = 0;
    const std::vector<std::string> models = repository->models().value();
    for (const std::string& model : models) named += repository->aliases(model)->size();
    EXPECT_EQ(named, 1u) << "those that were the best before have no alias any more";
    EXPECT_EQ(repository->resolve(best.model + "@best").value(), best);
  }
}

class Outage : public testing::Test {
 protected:
  /// One worker, so that nobody is in the middle of a call when a provider goes: what is counted is then exact.
  SearchOptions options() {
    SearchOptions options{.candidates = 60, .workers = 1};
    options.evolution = {.population = 10, .sample = 3, .seed = 3};
    options.trainer = {.epoch = std::chrono::microseconds(500), .seed = 3};
    return options;
  }

  ClusterWorld world_{3};
  std::unique_ptr<ClusterRepository> repository_ = world_.open();
  std::unique_ptr<Space> space_ = make_dense_skip_space();
};

TEST_F(Outage, ASearchGoesOnWithTheProvidersThatAnswer) {
  Search search(*repository_, *space_, options());
  const auto summary = search.run([&](const SearchSummary& so_far, const Evaluation&) {
    if (so_far.candidates == 20) world_.cut("p1");
  });
  ASSERT_TRUE(summary) << summary.error().message();
  EXPECT_EQ(summary->candidates, 60u);
  EXPECT_EQ(summary->unstored, 0u);
  EXPECT_GT(summary->puts_again, 0u) << "every third model's registrar is away";
  EXPECT_THAT(summary->retired + summary->unretired, testing::AnyOf(49u, 50u)) << "the best one may be among the rest";
  EXPECT_GT(summary->transferred, 30u) << "ancestors are chosen that can be read";

  world_.mend("p1");
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, testing::IsEmpty());
  std::uint64_t live = 0;
  const std::vector<std::string> models = repository_->models().value();
  for (const std::string& model : models) {
    const std::vector<LineageRow> rows = repository_->versions(model).value();
    for (const LineageRow& row : rows) {
      if (row.retired) continue;
      ++live;
      EXPECT_TRUE(read_all(*repository_, row.version)) << to_string(row.version);
    }
  }
  EXPECT_EQ(live, 60u - summary->retired);
}

TEST_F(Outage, WhatWasLeftIsDoneWhenTheProviderIsBack) {
  Search search(*repository_, *space_, options());
  const auto summary = search.run([&](const SearchSummary& so_far, const Evaluation&) {
    if (so_far.candidates == 15) world_.cut("p2");
    if (so_far.candidates == 45) world_.mend("p2");
  });
  ASSERT_TRUE(summary) << summary.error().message();
  EXPECT_EQ(summary->candidates, 60u);
  EXPECT_THAT(summary->retired, testing::AnyOf(49u, 50u)) << "the best one may be among the rest";
  EXPECT_EQ(summary->unretired, 0u);
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(repository_->stat()->versions, 60u - summary->retired);
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, testing::IsEmpty());
}

TEST_F(Outage, ItEndsWhenNobodyAnswersForLong) {
  SearchOptions few = options();
  few.workers = 3;
  few.patience.longest = std::chrono::milliseconds(50);
  Search search(*repository_, *space_, few);
  const auto summary = search.run([&](const SearchSummary& so_far, const Evaluation&) {
    if (so_far.candidates != 20) return;
    for (const char* id : {"p0", "p1", "p2"}) world_.cut(id);
  });
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code(), Code::unavailable);
  EXPECT_THAT(summary.error().message(), testing::HasSubstr("no provider answers"));
}

TEST_F(Outage, AnAncestorThatIsLostAfterTheMatchIsDoneWithout) {
  const SimulatedTrainer trainer({.seed = 1});
  Random random(1);
  const Genes genes = random_genes(space_->choices(), random);
  Candidate parent = make_candidate(*space_, genes, 1);
  ASSERT_TRUE(evaluate(*repository_, parent, trainer, 0, "parent", kNoWait));
  const std::vector<LineageRow> rows = repository_->versions("parent").value();
  const VersionId id = repository_->get(rows[0].version)->manifest.id;
  const std::string home = world_.placement().providers()[world_.placement().home(id)].id;

  // Lost while the child is trained: it is put with all its tensors.
  Candidate child = make_candidate(*space_, genes, 2);
  const auto evaluation = evaluate(*repository_, child, trainer, 1, "child", [&](auto) { world_.cut(home); });
  ASSERT_TRUE(evaluation) << evaluation.error().message();
  EXPECT_FALSE(evaluation->without_transfer);
  EXPECT_GT(evaluation->puts_again, 0u);
  EXPECT_EQ(evaluation->begun.ancestor, rows[0].version);
  ASSERT_THAT(evaluation->still_pinned, testing::SizeIs(1));
  const auto stored = read_all(*repository_, evaluation->finished.version);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_EQ(*stored, bytes_of(child));
  world_.mend(home);
  EXPECT_EQ(repository_->get(evaluation->finished.version)->manifest.ancestor, id);
  EXPECT_TRUE(abandon(*repository_, evaluation->still_pinned[0]));
}

/// Programs of their own, one of which is killed.
TEST(NasEvolution, ASearchSurvivesAProviderThatIsKilled) {
  const TemporaryFolder folder;
  const auto address = [&](const std::string& name) { return "ipc://" + (folder / name); };
  std::vector<std::unique_ptr<ChildProcess>> providers;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<std::string> words{test::built(FRESHET_PROGRAM),
                                   "provider",
                                   "--repo",
                                   folder / (std::string(name) + "-store"),
                                   "--listen",
                                   address(name),
                                   "--json"};
    if (!providers.empty()) words.insert(words.end(), {"--join", address("a")});
    providers.push_back(std::make_unique<ChildProcess>(words));
    ASSERT_TRUE(providers.back()->line()) << "it says that it listens";
  }
  // With a sanitizer each candidate takes ten times as long; the kill comes after the first eight.
  const int candidates = test::under_sanitizer() ? 40 : 90;
  const std::string all = address("a") + "," + address("b") + "," + address("c");
  ChildProcess search({test::built(NAS_EVOLUTION_PROGRAM), "--repo", all, "--candidates", std::to_string(candidates),
                       "--workers", "3", "--population", "10", "--sample", "3", "--epoch-ms", "5", "--patience", "120",
                       "--report", folder / "report", "--json"});
  {
    const auto repository = open_providers(all);
    ASSERT_TRUE(repository) << repository.error().message();
    EXPECT_TRUE(came_true([&] {
      const auto stat = (*repository)->stat();
      return stat && stat->versions >= 8;
    }));
  }
  providers[1]->end(SIGKILL);
  const auto line = search.line();
  ASSERT_TRUE(line) << "it ended with an error";
  EXPECT_EQ(search.wait(), 0);
  const nlohmann::json summary = nlohmann::json::parse(*line);
  EXPECT_EQ(summary["candidates"], candidates) << *line;
  EXPECT_EQ(summary["unstored"], 0) << *line;
}

/// The program as a user runs it.
class NasProgram : public testing::Test {
 protected:
  struct Answer {
    int exit_code = -1;
    std::string out;
    std::string err;
  };
  Answer run(const std::string& command) const {
    const int status = std::system(("cd '" + folder_.path() + "' && " + command + " > out 2> err").c_str());
    return {.exit_code = WEXITSTATUS(status), .out = text_of(folder_ / "out"), .err = text_of(folder_ / "err")};
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string search_ = test::built(NAS_EVOLUTION_PROGRAM) +
                              " --candidates 40 --population 4 --sample 2 --epoch-ms 1 --report 'its report'";
  TemporaryFolder folder_;
};

TEST_F(NasProgram, RunsDrawsItsLineageAndHandsOverItsWinner) {
  const Answer answer = run(search_ + " --json");
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json summary = nlohmann::json::parse(answer.out);
  EXPECT_EQ(summary["candidates"], 40);
  EXPECT_THAT(summary["retired"].get<int>(), testing::AnyOf(35, 36));
  EXPECT_GT(summary["transferred"], 30);
  EXPECT_GT(summary["freed_bytes"], 0);

  const std::string best = summary["best"];
  EXPECT_EQ(summary["best_alias"], best.substr(0, best.find('@')) + "@best");
  const std::string svg = text_of(folder_ / summary["lineage_svg"].get<std::string>());
  const std::string dot = text_of(folder_ / summary["lineage_dot"].get<std::string>());
  EXPECT_THAT(svg, testing::HasSubstr("candidate-39"));
  EXPECT_THAT(dot, testing::HasSubstr("candidate-39"));
  const std::size_t ring = svg.find("class=\"best\"");
  ASSERT_NE(ring, std::string::npos);
  EXPECT_EQ(svg.find("class=\"best\"", ring + 1), std::string::npos);
  const std::size_t title = svg.rfind("<title>", ring) + 7;
  EXPECT_THAT(svg.substr(title, ring - title), testing::StartsWith(best));
  const std::size_t node = dot.find("penwidth=2");
  const std::size_t line = dot.rfind('\n', node);
  EXPECT_THAT(dot.substr(line, node - line), testing::HasSubstr("[label=\"" + best + "\\n"));

  std::string get = summary["get"];
  ASSERT_THAT(get, testing::StartsWith("freshet repo get " + summary["best_alias"].get<std::string>()));
  const Answer got = run(test::built(FRESHET_PROGRAM) + get.substr(std::string("freshet").size()));
  EXPECT_EQ(got.exit_code, 0) << get << ": " << got.err;
  EXPECT_GT(std::filesystem::file_size(folder_ / "best.safetensors"), 0u);
}

TEST_F(NasProgram, TellsPeopleHowToGetTheWinner) {
  const Answer answer = run(search_);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, testing::HasSubstr("freshet repo get candidate-"));
  EXPECT_THAT(answer.out, testing::HasSubstr("@best --repo 'its report/repository' -o best.safetensors\n"));
}

TEST_F(NasProgram, TwoRunsAreNotMixed) {
  ASSERT_EQ(run(search_).exit_code, 0);
  const Answer second = run(search_);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_EQ(second.out, "");
  EXPECT_THAT(second.err, testing::HasSubstr("candidates of an earlier run, candidate-"));
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
  // Another name says that both are meant to be there.
  const Answer third = run(search_ + " --prefix second --json");
  ASSERT_EQ(third.exit_code, 0) << third.err;
  const nlohmann::json summary = nlohmann::json::parse(third.out);
  const std::string svg = text_of(folder_ / summary["lineage_svg"].get<std::string>());
  EXPECT_THAT(svg, testing::HasSubstr("<title>second-39@1"));
  EXPECT_THAT(svg, testing::Not(testing::HasSubstr("<title>candidate-")));
}

TEST(NasEvolution, WrongUsageIsToldAsSuch) {
  const std::string program = test::built(NAS_EVOLUTION_PROGRAM);
  EXPECT_EQ(WEXITSTATUS(std::system((program + " --candidates none 2> /dev/null").c_str())), 2);
  EXPECT_EQ(WEXITSTATUS(std::system((program + " --report /dev/null/report 2> /dev/null").c_str())), 1);
}

}  // namespace
}  // namespace freshet::nas
