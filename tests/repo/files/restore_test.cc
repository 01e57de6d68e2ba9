// SPDX-License-Identifier: Apache-2.0
/// Versions that are exported and restored, in repositories in memory: the same in every answer.

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/format.h"
#include "repo/files/import.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

constexpr char kGraph[] = R"({"freshet_graph": 1, "name": "two", "layers": [
  {"name": "x", "class": "Input", "config": {"dtype": "f32", "shape": [null, 2]}},
  {"name": "a", "class": "Dense", "config": {"units": 4}, "inputs": ["x"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [2, 4]}, "bias": {"dtype": "f32", "shape": [4]}}},
  {"name": "b", "class": "Dense", "config": {"units": 3}, "inputs": ["a"],
   "tensors": {"kernel": {"dtype": "f32", "shape": [4, 3]}}}], "outputs": ["b"], "note": [1, 2]})";

std::shared_ptr<const Architecture> graph() {
  auto parsed = parse_graph_json(kGraph);
  FRESHET_CHECK(parsed.has_value());
  return *parsed;
}

/// A version as it lies in a folder.
struct Exported {
  std::string sheet;
  std::string graph;
  std::vector<std::vector<std::byte>> bytes;
};

Exported exported(const Repository& repository, const VersionName& name, std::vector<std::string> aliases = {}) {
  const VersionRecord record = repository.get(name).value();
  Exported files{.sheet = to_json(sheet_of(record, std::move(aliases), 17)),
                 .graph = to_graph_json(*record.manifest.architecture)};
  if (record.has_weights) files.bytes = read_all(repository, name).value();
  return files;
}

Result<Restored> restore(Repository& repository, const Exported& files) {
  FRESHET_ASSIGN(const VersionSheet sheet, parse_version_sheet(files.sheet));
  FRESHET_ASSIGN(const auto architecture, parse_graph_json(files.graph));
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < files.bytes.size() && i < architecture->tensors().size(); ++i) {
    views.push_back({.spec = architecture->tensors()[i], .data = files.bytes[i]});
  }
  RestoreRequest request{.sheet = &sheet, .architecture = architecture};
  if (sheet.has_weights) request.tensors = std::span<const TensorView>(views);
  return restore_version(repository, request);
}

std::string text_of(const LineageRow& row) {
  return format("{} of {} {} {} {} {}", to_string(row.version), to_string(row.ancestor), row.own_bytes,
                row.inherited_bytes, row.quality ? format("{}", *row.quality) : "-", row.retired);
}

/// All that a repository answers, as one text.
std::string all_answers(const Repository& repository) {
  std::string text;
  const std::vector<std::string> models = repository.models().value();
  for (const std::string& model : models) {
    const std::vector<LineageRow> versions = repository.versions(model).value();
    for (const LineageRow& row : versions) {
      text += text_of(row) + "\n";
      const VersionRecord record = repository.get(row.version).value();
      const Manifest& manifest = record.manifest;
      text += format("  {} {} {} {} {}\n", to_string(manifest.id), to_hex(manifest.architecture->digest()),
                     manifest.step, manifest.created_unix_ns, record.has_weights);
      for (const auto& [key, value] : manifest.metrics) text += format("  metric {} {}\n", key, value);
      for (const auto& [key, value] : manifest.tags) text += format("  tag {} {}\n", key, value);
      const std::vector<LineageRow> line = repository.lineage(row.version).value();
      for (const LineageRow& ancestor : line) text += "  from " + text_of(ancestor) + "\n";
      if (!record.has_weights) continue;
      const std::vector<OwnerRow> owners = repository.owners(row.version).value();
      for (const OwnerRow& owner : owners) {
        text += format("  {} {} {}\n", owner.tensor, to_string(owner.segment), to_string(owner.owner));
      }
      const auto bytes = read_all(repository, row.version).value();
      for (const auto& tensor : bytes) text += format("  {}\n", to_hex(digest_of(tensor)));
    }
  }
  const RepositoryStat stat = repository.stat().value();
  return text + format("{} versions, {} tensors, {} bytes", stat.versions, stat.live_tensors, stat.live_bytes);
}

class RandomRepository {
 public:
  explicit RandomRepository(std::uint64_t seed) : random_(seed) {}

  void put_some(Repository& repository, int count) {
    for (int i = 0; i < count; ++i) put_one(repository);
    for (const TestVersion& version : versions_) {
      if (random_() % 5 != 0) continue;
      ASSERT_TRUE(repository.annotate(version.manifest.name, {.sets_quality = random_() % 2 == 0,
                                                              .quality = 0.25 * static_cast<double>(random_() % 9),
                                                              .tags = {{"later", "said"}, {"a", std::nullopt}}}));
    }
  }
  const std::vector<TestVersion>& versions() const { return versions_; }
  std::mt19937_64& random() { return random_; }

 private:
  void put_one(Repository& repository) {
    const TestVersion* base =
        versions_.empty() || random_() % 4 == 0 ? nullptr : &versions_[random_() % versions_.size()];
    const auto& architecture =
        base != nullptr ? base->manifest.architecture : architectures_[random_() % architectures_.size()];
    std::vector<std::uint32_t> changed;
    for (std::uint32_t i = 0; i < architecture->tensors().size(); ++i) {
      if (random_() % 3 == 0) changed.push_back(i);
    }
    TestVersion version = make_version(format("m{}", random_() % 3), test_id(++sequence_, random_() % 2 + 1),
                                       architecture, base, changed, random_);
    Manifest& manifest = version.manifest;
    manifest.step = random_();
    manifest.created_unix_ns = static_cast<std::int64_t>(1'700'000'000'000'000'000 + random_() % 1000);
    // A gap now and then.
    if (random_() % 4 == 0) manifest.name.number = next_[manifest.name.model] + 1 + random_() % 4;
    if (random_() % 2 == 0) manifest.metrics = {{"loss", 0.1}, {"odd", std::nan("")}, {"less", -0.0}};
    if (random_() % 2 == 0) manifest.tags = {{"z", "\"quoted\" \n ü"}, {"a", ""}};
    Repository::PutOptions options;
    options.has_weights = random_() % 6 != 0;
    if (random_() % 3 != 0) options.quality = static_cast<double>(random_() % 100) / 7;
    options.dedup = random_() % 4 == 0;
    options.deltas = random_() % 4 == 0;
    const auto name = put(repository, version, options);
    ASSERT_TRUE(name) << name.error().message();
    manifest.name = *name;
    next_[name->model] = name->number;
    // Nobody inherits from a graph that was never trained.
    if (options.has_weights) versions_.push_back(std::move(version));
  }

  std::mt19937_64 random_;
  std::uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<const Architecture>> architectures_ = {test_architecture({30, 4, 5}),
                                                                     test_architecture({2000}), graph()};
  std::vector<TestVersion> versions_;
  std::map<std::string, VersionNumber> next_;
};

TEST(Restore, AnyRepositoryComesBackTheSameInEveryAnswer) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    RandomRepository world(seed);
    const auto before = open_or_die(make_memory_backend());
    world.put_some(*before, 40);
    std::vector<Exported> files;
    const std::vector<std::string> models = before->models().value();
    for (const std::string& model : models) {
      const std::vector<LineageRow> rows = before->versions(model).value();
      for (const LineageRow& row : rows) files.push_back(exported(*before, row.version));
    }
    std::shuffle(files.begin(), files.end(), world.random());
    std::vector<RestorePlace> places;
    for (const Exported& one : files) {
      const Manifest manifest = parse_version_sheet(one.sheet).value().manifest;
      places.push_back({.name = manifest.name,
                        .id = manifest.id,
                        .ancestor = manifest.ancestor,
                        .created_unix_ns = manifest.created_unix_ns});
    }
    const auto after = open_or_die(make_memory_backend());
    for (const std::size_t at : restore_order(places)) {
      const auto restored = restore(*after, files[at]);
      ASSERT_TRUE(restored) << restored.error().message();
      EXPECT_EQ(restored->name, places[at].name);
      EXPECT_FALSE(restored->was_there);
    }
    EXPECT_EQ(all_answers(*after), all_answers(*before));
    const auto report = after->verify(std::nullopt, {});
    ASSERT_TRUE(report);
    for (const auto& one : report->corrupt) ADD_FAILURE() << to_string(one.version) << one.record << one.reason;
    for (const Exported& one : files) EXPECT_TRUE(restore(*after, one).value().was_there);
  }
}

class RestoreOne : public testing::Test {
 protected:
  void SetUp() override {
    first_ = make_version("net", test_id(1), graph(), nullptr, {}, random_);
    first_.manifest.name = put(*before_, first_, {.quality = 0.5}).value();
    second_ = make_version("net", test_id(2), graph(), &first_, {2}, random_);
    second_.manifest.name = put(*before_, second_).value();
  }
  std::string refusal(const Exported& files) {
    const auto restored = restore(*after_, files);
    return restored ? std::string("restored")
                    : format("{}: {}", name_of(restored.error().code()), restored.error().message());
  }

  std::mt19937_64 random_{3};
  std::unique_ptr<Repository> before_ = open_or_die(make_memory_backend());
  std::unique_ptr<Repository> after_ = open_or_die(make_memory_backend());
  TestVersion first_;
  TestVersion second_;
};

TEST_F(RestoreOne, ANumberThatIsTakenIsAnotherOne) {
  TestVersion other = make_version("net", test_id(77), graph(), nullptr, {}, random_);
  ASSERT_TRUE(put(*after_, other));
  const auto first = restore(*after_, exported(*before_, first_.manifest.name));
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(to_string(first->name), "net@2");
  const auto second = restore(*after_, exported(*before_, second_.manifest.name));
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(to_string(second->name), "net@3");
  const auto record = after_->get(second->name);
  EXPECT_EQ(to_string(record->manifest.ancestor_name), "net@2") << "as it goes by here";
  EXPECT_EQ(second->inherited_bytes, 48u);
  EXPECT_EQ(record->inherited_bytes, 48u);
}

TEST_F(RestoreOne, AnAncestorThatIsNotHereIsNoOtherVersion) {
  TestVersion other = make_version("net", test_id(77), graph(), nullptr, {}, random_);
  ASSERT_TRUE(put(*after_, other));
  const auto second = restore(*after_, exported(*before_, second_.manifest.name));
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(to_string(second->name), "net@2");
  EXPECT_EQ(after_->get(second->name)->manifest.ancestor_name.number, 0u) << "net@1 is somebody else here";
  EXPECT_EQ(read_all(*after_, second->name).value(), second_.bytes);
  // What it inherited goes by its writer's name, and is that version's when it comes.
  const auto first = restore(*after_, exported(*before_, first_.manifest.name));
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(after_->stat()->live_tensors, 3u + 1u + 3u);
  EXPECT_EQ(after_->lineage(second->name)->size(), 2u);
}

TEST_F(RestoreOne, OneThatWasRetiredHereStaysSo) {
  const Exported files = exported(*before_, first_.manifest.name);
  ASSERT_TRUE(restore(*after_, files));
  ASSERT_TRUE(after_->retire({.model = "net", .number = 1}, {}));
  EXPECT_EQ(refusal(files), "failed_precondition: it was retired here, as net@1");
}

TEST_F(RestoreOne, WhatIsNotAsItWasExportedIsNamed) {
  const Exported files = exported(*before_, first_.manifest.name);
  Exported other = files;
  other.bytes[1][3] ^= std::byte{1};
  EXPECT_EQ(refusal(other), "corrupt: tensor a.bias differs from the exported one");
  other = files;
  other.bytes.pop_back();
  EXPECT_EQ(refusal(other), "corrupt: tensor b.kernel was exported, and is not there");
  other = files;
  other.graph.replace(other.graph.find("\"units\":4"), 9, "\"units\":5");
  EXPECT_EQ(refusal(other), "corrupt: its graph differs from the exported one");
  other = files;
  other.sheet.replace(other.sheet.find("\"a.bias\""), 8, "\"b.bias\"");
  EXPECT_EQ(refusal(other), "corrupt: tensor b.bias was exported, and is not there");
  EXPECT_TRUE(after_->models()->empty());
  EXPECT_EQ(refusal(files), "restored");
  // Another one by that identity.
  TestVersion twin = make_version("net", test_id(2), graph(), &first_, {0}, random_);
  ASSERT_TRUE(put(*after_, twin));
  EXPECT_EQ(refusal(exported(*before_, second_.manifest.name)),
            "already_exists: another version has its identity here: net@2");
}

TEST_F(RestoreOne, HostileSheetsAreRefused) {
  const std::string sheet = exported(*before_, second_.manifest.name).sheet;
  const auto said = [&](const std::string& from, const std::string& to) {
    std::string changed = sheet;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from << " is not in " << sheet;
    changed.replace(at, from.size(), to);
    const auto parsed = parse_version_sheet(changed);
    return parsed ? std::string("taken") : parsed.error().message();
  };
  EXPECT_EQ(said("\"freshet_version\":3", "\"freshet_version\":1"),
            "it was written by another Freshet (format 1); this Freshet reads format 3. Import the files without their "
            "sheets (--plain)");
  EXPECT_EQ(said("\"freshet_version\":3", "\"freshet\":3"), "it has no \"freshet_version\"");
  EXPECT_NE(said("\"version\":\"net@2\"", "\"version\":\"../net@2\""), "taken");
  EXPECT_EQ(said("\"version\":\"net@2\"", "\"version\":\"net\""), "\"version\" has no number");
  EXPECT_EQ(said("\"version\":\"net@2\"", "\"version\":\"net@9223372036854775807\""), "\"version\" has no number");
  EXPECT_EQ(said("\"has_weights\":true", "\"has_weights\":1"), "\"has_weights\" is neither true nor false");
  EXPECT_EQ(said("\"has_weights\":true", "\"has_weights\":false"), "it has tensors, and no weights");
  EXPECT_EQ(said("\"metrics\":[]", "\"metrics\":[[\"a\",\"b\"]]"),
            "\"metrics\" holds something else than [name, value]");
  EXPECT_EQ(said("\"tags\":[]", "\"tags\":{\"a\":\"b\"}"), "\"tags\" is no list");
  EXPECT_NE(said("\"tags\":[]", "\"tags\":[[\"a\",\"1\"],[\"a\",\"2\"]]"), "taken");
  EXPECT_NE(said("\"aliases\":[]", "\"aliases\":[\"../best\"]"), "taken");
  EXPECT_EQ(said("\"created_ns\":0", "\"created_ns\":18446744073709551615"),
            "\"created_ns\" is no time in nanoseconds");
  EXPECT_EQ(said("\"step\":0", "\"step\":-1"), "\"step\" is no count");
  EXPECT_EQ(said("\"quality\":null", "\"quality\":\"good\""), "\"quality\" is no number");
  EXPECT_EQ(said("\"quality\":null", "\"quality\":\"nan\""), "taken") << "as none";
  EXPECT_EQ(said("/1/1/0\"", "/1/1\""), "a tensor's \"segment\" is none");
  EXPECT_EQ(said("/1/1/0\"", "/1/1/4294967296\""), "a tensor's \"segment\" is none");
  EXPECT_NE(parse_version_sheet("[]").error().message(), "");
  EXPECT_NE(parse_version_sheet("").error().message(), "");
  // Cut or bent at any place, it is refused or means something, and nothing worse.
  for (std::size_t at = 0; at < sheet.size(); ++at) {
    EXPECT_FALSE(parse_version_sheet(sheet.substr(0, at)));
    std::string bent = sheet;
    bent[at] = static_cast<char>(random_());
    (void)parse_version_sheet(bent);
  }
}

TEST(RestoreOrder, NumbersGoBeforeLines) {
  const auto place = [](const std::string& model, VersionNumber number, std::uint64_t id, std::uint64_t ancestor,
                        std::int64_t created) {
    RestorePlace one{.name = {.model = model, .number = number}, .id = test_id(id), .created_unix_ns = created};
    if (ancestor != 0) one.ancestor = test_id(ancestor);
    return one;
  };
  const std::vector<RestorePlace> places = {
      place("b", 2, 1, 2, 1),  // Older than its ancestor says that it is.
      place("a", 1, 2, 3, 5), place("b", 1, 3, 0, 9), place("a", 2, 4, 5, 1),  // A circle with the next one.
      place("c", 1, 5, 4, 2), place("c", 2, 6, 6, 0),                          // With itself.
  };
  EXPECT_EQ(restore_order(places), (std::vector<std::size_t>{2, 1, 0, 3, 4, 5}));
  EXPECT_TRUE(restore_order({}).empty());
}

}  // namespace
}  // namespace freshet
