// SPDX-License-Identifier: Apache-2.0
/// What a repository keeps beside its records to be opened quickly: believed only where it fits, and never missed.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "core/base/file_descriptor.h"
#include "repo/local/match/kept_graphs.h"
#include "repo/records/records.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

class DerivedTexts : public testing::Test {
 protected:
  void SetUp() override {
    std::cout << "seed 29\n";
    const auto repository = open_or_die(owner());
    for (std::uint64_t i = 1; i <= kModels; ++i) {
      versions_.push_back(make_version("m" + std::to_string(i), test_id(i), test_architecture({i, 7, i % 3 + 1}),
                                       nullptr, {}, random_));
      ASSERT_TRUE(put(*repository, versions_.back()));
    }
    stat_ = *repository->stat();
  }

  std::unique_ptr<Backend> owner() {
    auto backend = open_rocks_backend({.folder = folder_.path()});
    FRESHET_CHECK(backend.has_value());
    return *std::move(backend);
  }
  std::unique_ptr<Backend> reader() {
    auto backend = open_rocks_backend({.folder = folder_.path(), .create = false, .read_only = true});
    FRESHET_CHECK(backend.has_value());
    return *std::move(backend);
  }
  /// Each model is the best answer to its own architecture: the oracle is the model that was put.
  void expect_answers(Repository& repository) {
    for (const TestVersion& version : versions_) {
      MatchQuery query;
      query.graph = MatchGraph::of(*version.manifest.architecture);
      const auto answer = repository.match(query);
      ASSERT_TRUE(answer) << answer.error().message();
      ASSERT_FALSE(answer->top.empty());
      EXPECT_EQ(answer->top[0].version.model, version.manifest.name.model);
      EXPECT_EQ(answer->top[0].lcp.layers, query.graph->whole().layers);
    }
  }
  std::string text_of(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_text(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  static constexpr std::uint64_t kModels = 20;
  const TemporaryFolder folder_;
  std::mt19937_64 random_{29};
  std::vector<TestVersion> versions_;
  RepositoryStat stat_;
};

TEST_F(DerivedTexts, AReaderAnswersWithThemAndWithoutThem) {
  expect_answers(*open_or_die(reader()));
  const std::string graphs = text_of("derived-graphs");
  const KeptGraphs kept(graphs);
  EXPECT_TRUE(kept.is_whole());
  for (const TestVersion& version : versions_) {
    ASSERT_NE(kept.find(version.manifest.architecture->digest()), nullptr);
  }
  for (const std::string& text : {graphs.substr(0, graphs.size() / 2), std::string("no graphs at all"), graphs + "x"}) {
    write_text("derived-graphs", text);
    expect_answers(*open_or_die(reader()));
    EXPECT_EQ(text_of("derived-graphs"), text) << "a reader wrote";
  }
  fs::remove(folder_ / "derived-graphs");
  fs::remove(folder_ / "derived-sums");
  expect_answers(*open_or_die(reader()));
  EXPECT_EQ(open_or_die(reader())->stat()->live_bytes, stat_.live_bytes);
  EXPECT_FALSE(fs::exists(folder_ / "derived-graphs"));
  EXPECT_FALSE(fs::exists(folder_ / "derived-sums"));
}

TEST_F(DerivedTexts, AnOwnerMakesWhatIsMissingOrDamaged) {
  const std::string graphs = text_of("derived-graphs");
  for (const std::string& text : {std::string(), graphs.substr(0, graphs.size() / 2), "x" + graphs}) {
    write_text("derived-graphs", text);
    const auto repository = open_or_die(owner());
    expect_answers(*repository);
    const KeptGraphs kept(text_of("derived-graphs"));
    EXPECT_TRUE(kept.is_whole());
    EXPECT_EQ(kept.bytes(), graphs.size());
    for (const TestVersion& version : versions_) {
      EXPECT_NE(kept.find(version.manifest.architecture->digest()), nullptr);
    }
  }
}

TEST_F(DerivedTexts, GraphsOfRetiredVersionsGo) {
  const std::uint64_t bytes = fs::file_size(folder_ / "derived-graphs");
  {
    const auto repository = open_or_die(owner());
    while (versions_.size() > 5) {
      ASSERT_TRUE(repository->retire({.model = versions_.back().manifest.name.model, .number = 1}, {}));
      versions_.pop_back();
    }
    EXPECT_EQ(fs::file_size(folder_ / "derived-graphs"), bytes);
    expect_answers(*repository);
  }
  EXPECT_LT(fs::file_size(folder_ / "derived-graphs"), bytes / 2);
  expect_answers(*open_or_die(reader()));
}

TEST_F(DerivedTexts, ATextThatIsTooLongIsNotReadAndIsWrittenAnew) {
  const std::uint64_t bytes = fs::file_size(folder_ / "derived-graphs");
  // A hole takes no disk. Where the bytes are within the limit, they hold no entry.
  for (const std::uint64_t too_long : {std::uint64_t{5} << 30, (std::uint64_t{64} << 20) + (std::uint64_t{2} << 20)}) {
    fs::resize_file(folder_ / "derived-graphs", too_long);
    expect_answers(*open_or_die(reader()));
    EXPECT_EQ(fs::file_size(folder_ / "derived-graphs"), too_long);
    expect_answers(*open_or_die(owner()));
    EXPECT_EQ(fs::file_size(folder_ / "derived-graphs"), bytes);
  }
}

TEST_F(DerivedTexts, APutDoesNotWaitForAPipe) {
  fs::remove(folder_ / "derived-graphs");
  ASSERT_EQ(::mkfifo((folder_ / "derived-graphs").c_str(), 0600), 0);
  // With a reader, which reads nothing, the pipe could be opened, and would be full.
  const FileDescriptor pipe(::open((folder_ / "derived-graphs").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto repository = open_or_die(owner());
  versions_.push_back(make_version("late", test_id(100), test_architecture({50, 60}), nullptr, {}, random_));
  ASSERT_TRUE(put(*repository, versions_.back()));
  std::byte byte{};
  EXPECT_EQ(::read(pipe.get(), &byte, 1), 0) << "something was written into the pipe";
  expect_answers(*repository);
}

TEST_F(DerivedTexts, HaveTheRightsThatTheUmaskGives) {
  const auto rights = [&](const char* name) { return fs::status(folder_ / name).permissions(); };
  const ::mode_t before = ::umask(0027);
  fs::remove(folder_ / "derived-graphs");
  fs::remove(folder_ / "derived-sums");
  expect_answers(*open_or_die(owner()));
  EXPECT_EQ(rights("derived-graphs"), fs::perms(0640));
  EXPECT_EQ(rights("derived-sums"), fs::perms(0640));
  fs::remove(folder_ / "derived-graphs");
  versions_.push_back(make_version("late", test_id(100), test_architecture({50, 60}), nullptr, {}, random_));
  EXPECT_TRUE(put(*open_or_die(owner()), versions_.back()));
  EXPECT_EQ(rights("derived-graphs"), fs::perms(0640));
  ::umask(before);
}

// The kept graph of an architecture says nothing of its record.
TEST_F(DerivedTexts, AVersionWhoseArchitectureIsDamagedIsNoAnswer) {
  const auto best = make_version("best", test_id(100), test_architecture({1, 7, 2, 30}), nullptr, {}, random_);
  const auto twin = make_version("twin", test_id(101), test_architecture({1, 7, 2, 30}), nullptr, {}, random_);
  const std::string key = architecture_key(best.manifest.architecture->digest());
  {
    const auto repository = open_or_die(owner());
    ASSERT_TRUE(put(*repository, best));
    ASSERT_TRUE(put(*repository, twin));
  }
  std::string record = *owner()->get(key);
  record[record.size() / 2] = static_cast<char>(record[record.size() / 2] ^ 1);
  MatchQuery query;
  query.graph = MatchGraph::of(*best.manifest.architecture);
  for (const Backend::Batch& damage :
       {Backend::Batch{Backend::Put{key, record}}, Backend::Batch{Backend::Erase{key}}}) {
    ASSERT_TRUE(owner()->apply(damage));
    for (const bool reads : {true, false}) {
      const auto repository = open_or_die(reads ? reader() : owner());
      const auto answer = repository->match(query);
      ASSERT_TRUE(answer) << answer.error().message();
      ASSERT_FALSE(answer->top.empty());
      EXPECT_EQ(answer->top[0].version.model, "m1");
      EXPECT_TRUE(repository->get(answer->top[0].version));
      EXPECT_EQ(repository->get({.model = "best", .number = 1}).error().code(), Code::corrupt);
    }
  }
}

TEST_F(DerivedTexts, AGraphOfAnotherArchitectureIsFoundByVerify) {
  const auto graph = MatchGraph::of(*versions_[0].manifest.architecture);
  const Digest other = versions_[1].manifest.architecture->digest();
  write_text("derived-graphs", encode_kept_graph(other, *graph));
  const auto report = open_or_die(reader())->verify(std::nullopt, {});
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_EQ(report->corrupt.size(), 1U);
  EXPECT_EQ(report->corrupt[0].record, architecture_key(other));
  EXPECT_EQ(report->corrupt[0].reason, "the graph that match has of it is another one; delete the file derived-graphs");
}

TEST_F(DerivedTexts, TheSumsAreBelievedWhileNobodyWrote) {
  EXPECT_EQ(owner()->state(), reader()->state());
  const std::string sums = text_of("derived-sums");
  ASSERT_TRUE(sums.starts_with(reader()->state() + " ")) << sums;
  // It is they that are asked: the line of another owner, with one segment more and its digest, is believed.
  const std::string line = reader()->state() + " 1234 5678";
  write_text("derived-sums", line + " " + to_hex(plain_xxh3_of(bytes_of(line.data(), line.size()))) + "\n");
  EXPECT_EQ(open_or_die(reader())->stat()->live_tensors, 1234U);
  for (const std::string& text :
       {line + " 00000000000000000000000000000000\n", line, std::string(), sums.substr(1), sums + sums}) {
    write_text("derived-sums", text);
    const auto repository = open_or_die(reader());
    EXPECT_EQ(repository->stat()->live_tensors, stat_.live_tensors) << text;
    EXPECT_EQ(repository->stat()->live_bytes, stat_.live_bytes) << text;
  }
  // A build that keeps no sums erases a segment's record.
  write_text("derived-sums", sums);
  EXPECT_EQ(open_or_die(reader())->stat()->live_tensors, stat_.live_tensors);
  const SegmentName segment{.writer = test_id(3), .tensor = 1};
  ASSERT_TRUE(owner()->apply({Backend::Erase{segment_record_key(segment)}}));
  EXPECT_EQ(text_of("derived-sums"), sums);
  EXPECT_EQ(open_or_die(reader())->stat()->live_tensors, stat_.live_tensors - 1);
}

TEST_F(DerivedTexts, AnOwnerThatMatchedBeforeItPutFindsWhatCameAfter) {
  const auto repository = open_or_die(owner());
  expect_answers(*repository);
  versions_.push_back(make_version("late", test_id(100), test_architecture({50, 60}), nullptr, {}, random_));
  ASSERT_TRUE(put(*repository, versions_.back()));
  expect_answers(*repository);
  ASSERT_TRUE(repository->retire({.model = "m4", .number = 1}, {}));
  std::erase_if(versions_, [](const TestVersion& version) { return version.manifest.name.model == "m4"; });
  expect_answers(*repository);
}

// What is a delta onto another segment is read by its record where nobody read them all.
TEST_F(DerivedTexts, AReaderReadsDeltas) {
  {
    const auto repository = open_or_die(owner());
    TestVersion base = make_version("tuned", test_id(200), test_architecture({100'000}), nullptr, {}, random_);
    ASSERT_TRUE(put(*repository, base));
    TestVersion child = base;
    child.manifest.id = test_id(201);
    child.manifest.ancestor = base.manifest.id;
    child.manifest.owners = OwnerMap::all_written_by(child.manifest.id, 1);
    child.bytes[0][5] ^= std::byte{1};
    child.manifest.digests[0] = digest_of(child.bytes[0]);
    ASSERT_TRUE(put(*repository, child, {.deltas = true}));
    versions_ = {child};
  }
  const auto repository = open_or_die(reader());
  const auto bytes = read_all(*repository, {.model = "tuned", .number = 2});
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, versions_[0].bytes);
  const auto report = repository->verify(std::nullopt, {});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->corrupt.empty());
}

}  // namespace
}  // namespace freshet
