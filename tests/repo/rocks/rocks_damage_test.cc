// SPDX-License-Identifier: Apache-2.0
/// Bytes flipped in the tables of a RocksDB folder: found wherever they are, hiding nothing else, and gone when what
/// they were part of was retired and collected.

#include <gtest/gtest.h>

#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "repo/backend/backend_wrapper.h"
#include "repo/records/records.h"
#include "repo/rocks/store.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

class RocksDamage : public testing::Test {
 protected:
  Result<std::unique_ptr<Repository>> try_to_open() {
    FRESHET_ASSIGN(std::unique_ptr<Backend> backend, open_rocks_backend({.folder = store_}));
    return Repository::open(std::move(backend), {});
  }
  void open() {
    repository_.reset();
    auto opened = try_to_open();
    ASSERT_TRUE(opened) << opened.error().message();
    repository_ = *std::move(opened);
  }
  /// All that was put lies in tables afterwards, and nobody has the folder open.
  void close() {
    open();
    repository_.reset();
  }

  void put_version(const std::vector<std::uint64_t>& elements, const std::vector<std::uint32_t>& changed) {
    const TestVersion* before = versions_.empty() ? nullptr : &versions_.back();
    const auto architecture = before != nullptr ? before->manifest.architecture : test_architecture(elements);
    const std::uint64_t sequence = versions_.size() + 1;
    versions_.push_back(make_version("net", test_id(sequence), architecture, before, changed, random_));
    versions_.back().manifest.name.number = sequence;
    const auto stored = put(*repository_, versions_.back());
    ASSERT_TRUE(stored) << stored.error().message();
  }

  std::vector<std::string> tables() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(store_)) {
      if (entry.path().extension() == ".sst") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  static std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void flip(const std::string& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x40);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
  struct Place {
    std::string path;
    std::uint64_t offset = 0;
  };
  /// Where the tensor's bytes lie.
  Place place_of(const std::vector<std::byte>& bytes) const {
    const std::string wanted(reinterpret_cast<const char*>(bytes.data()) + 100, 64);
    for (const std::string& path : tables()) {
      const std::size_t at = content_of(path).find(wanted);
      if (at != std::string::npos) return {path, at};
    }
    ADD_FAILURE() << "no table has the bytes";
    return {};
  }
  static rocksdb::TableProperties properties_of(const std::string& path) {
    rocksdb::SstFileReader reader(blob_table_options());
    EXPECT_TRUE(reader.Open(path).ok());
    return *reader.GetTableProperties();
  }

  void expect_whole(std::size_t index) {
    const auto bytes = read_all(*repository_, name(index + 1));
    ASSERT_TRUE(bytes) << bytes.error().message();
    EXPECT_EQ(*bytes, versions_[index].bytes);
  }
  void expect_corrupt(std::size_t index) {
    EXPECT_TRUE(is_refused(read_all(*repository_, name(index + 1)), Code::corrupt));
  }
  VerifyReport verified() {
    auto report = repository_->verify(std::nullopt, {});
    EXPECT_TRUE(report) << report.error().message();
    return report ? *std::move(report) : VerifyReport{};
  }
  void expect_clean() {
    for (const auto& one : verified().corrupt) {
      ADD_FAILURE() << to_string(one.version) << " " << one.tensor << " " << one.record << ": " << one.reason;
    }
  }
  /// What is kept is what is alive, but for one part in a hundred, as soon as merges that go on have ended.
  void expect_little_waste() {
    std::uint64_t kept = 0;
    std::uint64_t most = 0;
    for (int looks = 0; looks == 0 || (kept > most && looks < 600); ++looks) {
      if (looks != 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const RepositoryStat stat = repository_->stat().value();
      kept = stat.disk_bytes - stat.metadata_bytes;
      most = stat.live_bytes + stat.live_bytes / 100;
    }
    EXPECT_LE(kept, most);
  }
  GcReport collect() {
    auto report = repository_->gc({}, {});
    EXPECT_TRUE(report) << report.error().message();
    return report ? *std::move(report) : GcReport{};
  }
  void retire(std::size_t index) {
    const auto retired = repository_->retire(name(index + 1), {});
    ASSERT_TRUE(retired) << retired.error().message();
  }

  /// The second version's first tensor is damaged, then retired, then collected; the others never notice.
  void expect_damage_to_go(bool is_told_by_tensor) {
    open();
    expect_whole(0);
    expect_corrupt(1);
    expect_whole(2);
    const VerifyReport before = verified();
    ASSERT_FALSE(before.corrupt.empty());
    EXPECT_EQ(to_string(before.corrupt[0].version), "net@2");
    if (is_told_by_tensor) {
      EXPECT_EQ(before.corrupt.size(), 1u);
      EXPECT_EQ(before.corrupt[0].tensor, "layer0.kernel");
    }
    EXPECT_TRUE(collect().notes.empty());
    retire(1);
    const VerifyReport retired = verified();
    ASSERT_EQ(retired.corrupt.size(), 1u);
    EXPECT_NE(retired.corrupt[0].record.find(".sst"), std::string::npos) << retired.corrupt[0].record;
    EXPECT_NE(retired.corrupt[0].reason.find("no version needs"), std::string::npos) << retired.corrupt[0].reason;
    const GcReport report = collect();
    EXPECT_GT(report.freed_bytes, 0u);
    EXPECT_EQ(report.notes, std::vector<std::string>());
    for (int round = 0; round < 2; ++round) {
      expect_whole(0);
      expect_whole(2);
      expect_clean();
      expect_little_waste();
      EXPECT_EQ(collect().freed_bytes, 0u);
      open();
    }
    put_version({}, {0});
    expect_whole(3);
  }

  static VersionName name(VersionNumber number) { return {.model = "net", .number = number}; }

  const TemporaryFolder folder_;
  const std::string store_ = folder_ / "store";
  std::mt19937_64 random_{9};
  std::vector<TestVersion> versions_;
  std::unique_ptr<Repository> repository_;
};

TEST_F(RocksDamage, OfALargePayloadGoesWithItsVersion) {
  open();
  for (int i = 0; i < 3; ++i) put_version({5'000'000, 300}, {0});
  close();
  const Place place = place_of(versions_[1].bytes[0]);
  flip(place.path, place.offset);
  expect_damage_to_go(true);
}

TEST_F(RocksDamage, OfASmallPayloadGoesWithItsVersion) {
  open();
  for (int i = 0; i < 3; ++i) put_version({300'000, 300}, {0});
  close();
  const Place place = place_of(versions_[1].bytes[0]);
  flip(place.path, place.offset);
  expect_damage_to_go(true);
}

TEST_F(RocksDamage, OfAnIndexHidesOnlyItsOwnTable) {
  open();
  for (int i = 0; i < 3; ++i) put_version({5'000'000, 300}, {0});
  close();
  const Place place = place_of(versions_[1].bytes[0]);
  const rocksdb::TableProperties properties = properties_of(place.path);
  flip(place.path, properties.data_size + properties.index_size / 2);
  expect_damage_to_go(false);
}

// The table's other tensors are moved out of it.
TEST_F(RocksDamage, LeavesWhatIsAliveInTheSameTable) {
  open();
  put_version({3'000'000, 2'000'000, 1'000'000}, {});
  put_version({}, {0, 2});
  put_version({}, {0, 2});
  close();
  const Place place = place_of(versions_[0].bytes[0]);
  flip(place.path, place.offset);
  open();
  expect_corrupt(0);
  expect_whole(1);
  retire(0);
  EXPECT_EQ(collect().freed_bytes, 4'000'000u);
  expect_whole(1);
  expect_whole(2);
  expect_clean();
  expect_little_waste();
  open();
  expect_whole(1);
  expect_whole(2);
}

// Somebody may still get at what is left of it.
TEST_F(RocksDamage, OfWhatIsAliveIsKept) {
  open();
  for (int i = 0; i < 3; ++i) put_version({3'000'000, 3'000'000}, {0, 1});
  close();
  const Place place = place_of(versions_[1].bytes[0]);
  flip(place.path, place.offset);
  open();
  retire(0);
  collect();
  expect_corrupt(1);
  expect_whole(2);
  const VersionRecord record = repository_->get(name(2)).value();
  std::vector<std::byte> second(versions_[1].bytes[1].size());
  const Repository::TensorRead read{.tensor = 1, .out = second};
  EXPECT_TRUE(repository_->read(record, {&read, 1}));
  EXPECT_EQ(second, versions_[1].bytes[1]);
  std::vector<std::byte> first(versions_[1].bytes[0].size());
  ASSERT_TRUE(repository_->read_range(record, 0, 0, first));
  std::size_t different = 0;
  for (std::size_t at = 0; at < first.size(); ++at) different += first[at] != versions_[1].bytes[0][at] ? 1 : 0;
  EXPECT_EQ(different, 1u);
}

// Their heads say which blobs there are: without them nothing can be told to be dead, and all else goes on.
TEST_F(RocksDamage, OfTheListOfBlobsKeepsWhatItHides) {
  open();
  for (int i = 0; i < 3; ++i) put_version({300'000, 300}, {0});
  close();
  const Place place = place_of(versions_[1].bytes[0]);
  flip(place.path, 30);  // The heads are the first block.
  open();
  for (std::size_t i = 0; i < 3; ++i) expect_corrupt(i);
  EXPECT_FALSE(verified().corrupt.empty());
  retire(1);
  const GcReport report = collect();
  EXPECT_EQ(report.freed_bytes, 0u);
  EXPECT_FALSE(report.notes.empty());
  EXPECT_TRUE(repository_->stat());
  put_version({}, {0, 1});
  for (int round = 0; round < 5; ++round) {  // As many tables as RocksDB begins to merge at.
    expect_whole(3);
    collect();
    put_version({}, {1});
  }
  EXPECT_EQ(place_of(versions_[1].bytes[0]).path, place.path);
  flip(place.path, 30);
  open();
  expect_whole(0);
  expect_whole(2);
  EXPECT_EQ(collect().freed_bytes, 300'000u);
  expect_clean();
}

// Whatever block of the records it is: what can be read stays readable, nothing is erased, and nothing is changed.
TEST_F(RocksDamage, OfRecordsHidesNothingElseAndChangesNothing) {
  open();
  // Their digests leave compression little, so that there are some blocks.
  for (int i = 0; i < 400; ++i) put_version({300, 20, 20, 20, 20, 20, 20, 20}, {static_cast<std::uint32_t>(i % 8)});
  close();
  std::vector<std::string> record_tables;
  for (const std::string& path : tables()) {
    if (properties_of(path).column_family_name == "default") record_tables.push_back(path);
  }
  ASSERT_EQ(record_tables.size(), 1u);
  const std::uint64_t bytes = properties_of(record_tables[0]).data_size;
  ASSERT_GT(bytes, 3u * 16384);
  std::size_t opened = 0;
  for (std::uint64_t offset = 1000; offset < bytes; offset += 10'007) {
    SCOPED_TRACE(offset);
    flip(record_tables[0], offset);
    auto damaged = try_to_open();
    if (!damaged) {
      EXPECT_EQ(damaged.error().code(), Code::corrupt) << damaged.error().message();
    } else {
      ++opened;
      repository_ = *std::move(damaged);
      EXPECT_FALSE(verified().corrupt.empty());
      std::size_t readable = 0;
      for (std::size_t i = 0; i < versions_.size(); ++i) {
        const auto read = read_all(*repository_, name(i + 1));
        EXPECT_TRUE(!read || *read == versions_[i].bytes);
        readable += read ? 1 : 0;
      }
      EXPECT_GT(readable, 0u);
      EXPECT_EQ(collect().freed_bytes, 0u);
      repository_.reset();
    }
    flip(record_tables[0], offset);
    open();
    expect_clean();
    expect_whole(versions_.size() - 1);
    repository_.reset();
    if (!fs::exists(record_tables[0])) break;  // It was compacted when it was whole.
  }
  EXPECT_GT(opened, 0u);
}

/// Lets a test do something while a batch is on its way.
class InterruptedBackend final : public BackendWrapper {
 public:
  explicit InterruptedBackend(std::shared_ptr<Backend> inner) : BackendWrapper(std::move(inner)) {}
  Status apply(const Batch& batch) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return BackendWrapper::apply(batch);
  }
  std::function<void()> meanwhile;
};

// Readers never wait for whoever writes, not even to learn that something is damaged.
TEST(Reading, ADamagedManifestWaitsForNoWriter) {
  const std::shared_ptr<Backend> memory = make_memory_backend();
  auto made = std::make_unique<InterruptedBackend>(memory);
  InterruptedBackend& backend = *made;
  const auto repository = open_or_die(std::move(made));
  std::mt19937_64 random(4);
  const auto architecture = test_architecture({100, 30});
  TestVersion first = make_version("net", test_id(1), architecture, nullptr, {}, random);
  first.manifest.name.number = 1;
  ASSERT_TRUE(put(*repository, first));
  const VersionName name{.model = "net", .number = 1};
  const VersionRow row = decode_version_row(memory->get(version_key(name)).value()).value();
  ASSERT_TRUE(memory->apply({Backend::Erase{entry_key(row.group, row.entry)}}));

  std::future<Code> asked;
  bool answered = false;
  backend.meanwhile = [&] {
    asked = std::async(std::launch::async, [&] {
      const auto record = repository->get(name);
      return record ? Code::cancelled : record.error().code();
    });
    answered = asked.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  };
  TestVersion second = make_version("net", test_id(2), architecture, &first, {0}, random);
  EXPECT_TRUE(put(*repository, second));
  EXPECT_TRUE(answered);
  EXPECT_EQ(asked.get(), Code::corrupt);

  // One that is being retired is gone as soon as its record says so.
  ASSERT_TRUE(memory->apply({Backend::Put{version_key(name), [&] {
                                            VersionRow retired = row;
                                            retired.retired = true;
                                            return encode(retired);
                                          }()}}));
  const auto gone = repository->get(name);
  ASSERT_TRUE(is_refused(gone, Code::not_found));
  EXPECT_EQ(gone.error().message(), "net@1 was retired");
}

}  // namespace
}  // namespace freshet
