// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/shards/shard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>

#include "core/base/bytes.h"
#include "repo/levels/job_catalog.h"
#include "repo/levels/level_board.h"
#include "repo/levels/restart/question.h"
#include "repo/levels/restart/restart_plan.h"
#include "repo/levels/resting.h"
#include "repo/levels/shards/shard_folders.h"
#include "tests/fault/fault_env.h"
#include "tests/support/from_environment.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "transport/group/messages.h"

namespace freshet::levels {
namespace {

std::vector<LaidTensor> some_tensors() {
  return {{.spec = {.name = "w", .dtype = DType::f32, .shape = {600, 1000}}, .layout = {}},
          {.spec = {.name = "s", .dtype = DType::u8, .shape = {9, 5}}, .layout = {.cut = Cut::split, .argument = 1}}};
}

ShardHeader some_header(const TensorTable& table) {
  const Version older{.id = {.run = {1, 2}, .incarnation = 3, .sequence = 4}, .number = 4};
  const Version newer{.id = {.run = {1, 2}, .incarnation = 3, .sequence = 5}, .number = 5};
  ShardHeader header{.model = "net",
                     .key = {.version = newer, .rank = 1, .ranks = 2},
                     .step = 50,
                     .host = "a",
                     .tensors = table.digest,
                     .versions = {newer, older},
                     .records = {{.writer = 1, .store = 1, .offset = 64}, {.writer = 0, .store = 0, .offset = 0}},
                     .payload_bytes = 64};
  header.digests.resize(first_chunks(stored_pieces(table.tensors, 2, 1)).back(), Digest{7, 8});
  return header;
}

/// A rank's parity of a group of three, of two rows with two blocks each.
ShardHeader some_parity(const TensorTable& table) {
  ShardHeader header = some_header(table);
  header.digests.clear();
  header.key.ranks = 9;
  header.key.rank = 4;
  header.parity = ParityOf{.members = {0, 4, 8},
                           .losses = 2,
                           .parts = {kParityBlockBytes + 64},
                           .heads = {encode_shard_head(some_header(table)), std::vector<std::byte>(3)}};
  header.records.resize(4);
  return header;
}

TEST(Shard, ParityComesBackAsItWas) {
  const ShardHeader header = some_parity(*TensorTable::of(some_tensors()));
  const auto decoded = decode_shard_head(encode_shard_head(header));
  ASSERT_TRUE(decoded) << decoded.error().message();
  ASSERT_TRUE(decoded->parity);
  EXPECT_EQ(decoded->parity->members, header.parity->members);
  EXPECT_EQ(decoded->parity->losses, 2U);
  EXPECT_EQ(decoded->parity->parts, header.parity->parts);
  EXPECT_EQ(decoded->parity->heads, header.parity->heads);
  EXPECT_EQ(decoded->records, header.records);
  EXPECT_EQ(decoded->parity->row_bytes(), kParityBlockBytes + 64);
  EXPECT_EQ(decoded->parity->blocks(),
            (std::vector<ByteRange>{{.offset = 0, .bytes = kParityBlockBytes},
                                    {.offset = kParityBlockBytes, .bytes = 64},
                                    {.offset = kParityBlockBytes + 64, .bytes = kParityBlockBytes},
                                    {.offset = 2 * kParityBlockBytes + 64, .bytes = 64}}));
  EXPECT_EQ(decoded->parity->position_of(8), 2U);
}

TEST(Shard, ParityThatCannotBeIsCorrupt) {
  const ShardHeader good = some_parity(*TensorTable::of(some_tensors()));
  const std::vector<std::function<void(ShardHeader&)>> faults = {
      [](ShardHeader& header) {
        header.parity->members = {0, 8, 4};
      },
      [](ShardHeader& header) {
        header.parity->members = {0, 4, 4};
      },
      [](ShardHeader& header) {
        header.parity->members = {0, 8};
      },
      [](ShardHeader& header) {
        header.parity->members = {0, 4, 9};
      },
      [](ShardHeader& header) { header.parity->members = {}; },
      [](ShardHeader& header) { header.parity->losses = 0; },
      [](ShardHeader& header) { header.parity->losses = 3; },
      [](ShardHeader& header) { header.parity->losses = UINT32_MAX; },
      [](ShardHeader& header) { header.parity->parts.front() += 1; },
      [](ShardHeader& header) { header.parity->parts.front() = std::uint64_t{1} << 63; },
      [](ShardHeader& header) { header.parity->parts.front() = 0; },
      [](ShardHeader& header) { header.parity->parts.push_back(64); },
      [](ShardHeader& header) { header.parity->parts.push_back(0); },
      [](ShardHeader& header) { header.parity->parts.push_back(std::uint64_t{1} << 56); },
      [](ShardHeader& header) { header.parity->parts.clear(); },
      [](ShardHeader& header) { header.parity->heads.pop_back(); },
      [](ShardHeader& header) { header.records.pop_back(); },
      [](ShardHeader& header) { header.digests.resize(4); },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    ShardHeader header = good;
    faults[i](header);
    EXPECT_FALSE(decode_shard_head(encode_shard_head(header))) << "fault " << i;
  }
}

TEST(Shard, HeadsComeBackAsTheyWere) {
  const auto table = TensorTable::of(some_tensors());
  const ShardHeader header = some_header(*table);
  const std::vector<std::byte> head = encode_shard_head(header);
  EXPECT_EQ(shard_head_bytes(head), head.size());
  const auto decoded = decode_shard_head(head);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key, header.key);
  EXPECT_EQ(decoded->records, header.records);
  EXPECT_EQ(decoded->digests, header.digests);
  EXPECT_EQ(decoded->versions, header.versions);
  EXPECT_EQ(decoded->needs(), std::vector<Version>{header.versions[1]});
  EXPECT_TRUE(check_records(*decoded, stored_pieces(table->tensors, 2, 1)));
  EXPECT_FALSE(check_records(*decoded, stored_pieces(table->tensors, 1, 0)));
  ShardHeader longer = header;
  longer.payload_bytes = memory_offsets(stored_pieces(table->tensors, 2, 1)).back();
  EXPECT_TRUE(check_records(longer, stored_pieces(table->tensors, 2, 1)));
  ++longer.payload_bytes;
  EXPECT_FALSE(check_records(longer, stored_pieces(table->tensors, 2, 1)));
  const auto again = TensorTable::decode(table->encoded, table->digest);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->tensors, table->tensors);
}

/// Two of f4 share a byte, so no rank's part may begin at an odd one.
TEST(Shard, ATensorThatIsSplitInsideAByteIsCorrupt) {
  for (const auto& [shape, axis, is_right] :
       {std::tuple(Shape{8}, 0U, false), std::tuple(Shape{4, 6}, 1U, false), std::tuple(Shape{4, 6}, 0U, true)}) {
    const auto table = TensorTable::of(
        {{.spec = {.name = "f", .dtype = DType::f4, .shape = shape}, .layout = {.cut = Cut::split, .argument = axis}}});
    const auto decoded = TensorTable::decode(table->encoded, table->digest);
    EXPECT_EQ(decoded.has_value(), is_right) << axis;
    EXPECT_TRUE(decoded || decoded.error().code() == Code::corrupt);
  }
}

/// A list of tensors that no shards can cover would be memory nobody proved.
TEST(Shard, TensorsThatNobodyStoresAreCorrupt) {
  std::vector<LaidTensor> tensors = some_tensors();
  EXPECT_TRUE(check_table(*TensorTable::of(tensors), 2));
  tensors.push_back(
      {.spec = {.name = "o", .dtype = DType::u8, .shape = {5}}, .layout = {.cut = Cut::own, .argument = 2}});
  EXPECT_FALSE(check_table(*TensorTable::of(tensors), 2));
  EXPECT_TRUE(check_table(*TensorTable::of(tensors), 3));
  for (const char* name : {"huge", "huger"}) {
    tensors.push_back({.spec = {.name = name, .dtype = DType::u8, .shape = {std::uint64_t{1} << 62}}, .layout = {}});
  }
  EXPECT_FALSE(check_table(*TensorTable::of(tensors), 3));
}

/// Every single byte that is changed, and every length that is cut, is noticed.
TEST(Shard, DamagedHeadsAreCorrupt) {
  const std::vector<std::byte> head = encode_shard_head(some_header(*TensorTable::of(some_tensors())));
  for (std::size_t i = 0; i < head.size(); ++i) {
    std::vector<std::byte> damaged = head;
    damaged[i] ^= std::byte{0x41};
    const auto decoded = decode_shard_head(damaged);
    if (decoded) {
      // Padding says nothing.
      EXPECT_TRUE((i >= 48 && i < kShardPrefixBytes) || i > head.size() - kPieceAlignment) << i;
      EXPECT_EQ(decoded->records, decode_shard_head(head)->records);
    } else {
      EXPECT_EQ(decoded.error().code(), Code::corrupt);
    }
  }
  for (std::size_t bytes = 0; bytes < head.size(); bytes += 7) {
    EXPECT_FALSE(decode_shard_head(Bytes(head).first(bytes))) << bytes;
  }
}

TEST(Shard, NumbersThatCannotBeAreRefused) {
  const auto table = TensorTable::of(some_tensors());
  const ShardHeader good = some_header(*table);
  ASSERT_TRUE(decode_shard_head(encode_shard_head(good)));
  std::vector<ShardHeader> bad(5, good);
  bad[0].key.version.number = UINT64_MAX;
  bad[1].key.version.id.incarnation = UINT64_MAX;
  bad[2].versions.front().number = UINT64_MAX;
  bad[3].records.front().offset = UINT64_MAX - 63;
  bad[4].payload_bytes = UINT64_MAX - 63;
  for (const ShardHeader& header : bad) {
    EXPECT_TRUE(is_refused(decode_shard_head(encode_shard_head(header)), Code::corrupt)) << &header - bad.data();
  }
  const Inventory sound{.held = {{.key = good.key, .needs = {}, .members = {}}}, .number_max = 7};
  ASSERT_TRUE(decode_inventory(encode(sound)));
  std::vector<Inventory> inventories(4, sound);
  inventories[0].number_max = UINT64_MAX;
  inventories[1].incarnation_max = UINT64_MAX;
  inventories[2].held.front().key.version.number = UINT64_MAX;
  inventories[3].acknowledged.front() = UINT64_MAX;
  for (const Inventory& inventory : inventories) {
    EXPECT_FALSE(decode_inventory(encode(inventory))) << &inventory - inventories.data();
  }
  EXPECT_FALSE(decode_plan(encode(RestartPlan{.next_number = UINT64_MAX})));
}

/// A repository is others', too: no number may follow its greatest one.
TEST(RestartPlanner, AVersionThatNoNumberCanFollowIsNamed) {
  const Version version{.id = {.run = {1, 2}, .incarnation = 3, .sequence = 4}, .number = UINT64_MAX};
  const RestartPlanner planner({Inventory{}}, {{version, 9, 0}}, {});
  const auto plan = planner.next();
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message().find("18446744073709551615"), std::string::npos) << plan.error().message();
}

/// All ranks read a version of the repository, and each tells its damage.
TEST(RestartPlanner, DamageThatManyRanksFindIsToldOnce) {
  const Version version{.id = {.run = {1, 2}, .incarnation = 3, .sequence = 4}, .number = 4};
  Version older = version;
  older.id.sequence = older.number = 3;
  RestartPlanner planner({Inventory{}, Inventory{}, Inventory{}}, {{older, 8, 3}, {version, 9, 3}}, {});
  const auto plan = planner.next();
  ASSERT_TRUE(plan) << plan.error().message();
  ASSERT_EQ(plan->version, version);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    planner.cross_off(version, {{plan->holders.at(0), "version 4 in the repository: a blob is cut"}}, plan->source);
  }
  const auto next = planner.next();
  ASSERT_TRUE(next) << next.error().message();
  EXPECT_EQ(next->version, older);
  EXPECT_EQ(next->notes, std::vector<std::string>{"version 4 in the repository: a blob is cut"});
}

/// What comes from a peer: no bytes crash a reader, and none of the damaged ones that are taken differ in size.
TEST(Shard, HostileMessagesAreRefusedOrHarmless) {
  const Version version{.id = {.run = {1, 2}, .incarnation = 3, .sequence = 4}, .number = 4};
  Inventory inventory{.held = {{.key = {.version = version, .rank = 1, .ranks = 3}, .step = 9, .needs = {version}}},
                      .number_max = 7};
  inventory.error = Error(Code::corrupt, "bad");
  RestartPlan plan{.source = RestartPlan::Source::shards,
                   .version = version,
                   .ranks = 3,
                   .holders = {{version, 1, 2, true}},
                   .notes = {"x"}};
  RestartOutcome outcome{.bad = {{{version, 1, 2}, "why"}}};
  const Question question{.kind = Question::Kind::read, .key = {.version = version, .ranks = 2}, .ranges = {{1, 2}}};
  LevelNote note{.kind = LevelNote::Kind::failed, .version = 3, .error = Error(Code::io_error, "disk")};
  group::Message message{.kind = group::Kind::hello,
                         .from = 2,
                         .claims = {{"ranks", "3"}},
                         .peers = {{"tcp://127.0.0.1:7", "", "a"}},
                         .ranks = {1},
                         .data = std::vector<std::byte>(5)};
  EXPECT_EQ(group::decode(encode(message)), message);
  const auto decoded_plan = decode_plan(encode(plan));
  ASSERT_TRUE(decoded_plan);
  EXPECT_EQ(decoded_plan->holders, plan.holders);
  const auto decoded_note = decode_level_note(encode(note));
  ASSERT_TRUE(decoded_note);
  EXPECT_EQ(decoded_note->error->message(), "disk");
  const auto decoded_inventory = decode_inventory(encode(inventory));
  ASSERT_TRUE(decoded_inventory);
  EXPECT_EQ(decoded_inventory->held.at(0).needs, inventory.held[0].needs);

  const std::uint64_t seed = from_environment("FRESHET_SEED", 5);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  const std::vector<std::vector<std::byte>> originals = {encode(inventory), encode(plan), encode(outcome),
                                                         encode(question),  encode(note), encode(message)};
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = originals[random() % originals.size()];
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    static_cast<void>(decode_inventory(bytes));
    static_cast<void>(decode_plan(bytes));
    static_cast<void>(decode_outcome(bytes));
    static_cast<void>(decode_question(bytes));
    static_cast<void>(decode_level_note(bytes));
    static_cast<void>(group::decode(bytes));
  }
}

/// Each call that changes files fails, in turn: a shard is whole or not there, and never takes an older one's place.
TEST(ShardFaults, AFailedWriteLeavesNoShard) {
  for (std::uint64_t nth = 1; nth < 20; ++nth) {
    const TemporaryFolder folder;
    test::FaultEnv env(system_env());
    const auto table = TensorTable::of(some_tensors());
    const ShardHeader header = some_header(*table);
    const auto folders = ShardFolders::open(env, {folder.path()}, "net", 1);
    ASSERT_TRUE(folders);
    env.fail_call(nth, ENOSPC, false);
    const std::vector<std::byte> payload(64);
    const Bytes part(payload);
    Status done = (*folders)->write_table(*table);
    if (done) done = (*folders)->write(encode_shard_head(header), header.key, std::span(&part, 1), {});
    std::vector<std::string> damaged;
    const auto held = (*folders)->scan(&damaged);
    EXPECT_TRUE(damaged.empty()) << damaged.front();
    if (done) {
      EXPECT_EQ(held.size(), 1U);
      EXPECT_LT(env.calls(), nth) << "a call failed, and nobody said so";
      return;
    }
    EXPECT_EQ(done.error().code(), Code::out_of_space);
  }
  FAIL() << "20 calls for one shard";
}

/// Also of a shard that is one piece.
TEST(ShardFaults, HalfOfAShardIsWrittenWhenThatIsSaid) {
  const TemporaryFolder folder;
  const ShardHeader header = some_header(*TensorTable::of(some_tensors()));
  const std::vector<std::byte> head = encode_shard_head(header);
  const auto folders = ShardFolders::open(system_env(), {folder.path()}, "net", 1);
  ASSERT_TRUE(folders);
  const std::vector<std::byte> payload(64);
  for (const std::size_t first : {0U, 20U, 64U}) {
    const std::vector<Bytes> parts = {Bytes(payload).first(first), Bytes(payload).subspan(first)};
    int calls = 0;
    const auto half = [&] {
      ++calls;
      for (const auto& entry : std::filesystem::directory_iterator(folder / "net")) {
        if (entry.path().extension() != ".tmp") continue;
        EXPECT_EQ(entry.file_size(), head.size() + 32) << first;
      }
    };
    ASSERT_TRUE((*folders)->write(head, header.key, parts, half));
    EXPECT_EQ(calls, 1) << first;
  }
  EXPECT_EQ((*folders)->scan().size(), 1U);
}

TEST(ShardFaults, FilesOfOthersAreLeftOutByName) {
  const TemporaryFolder folder;
  const auto table = TensorTable::of(some_tensors());
  const ShardHeader header = some_header(*table);
  const auto folders = ShardFolders::open(system_env(), {folder.path()}, "net", 1);
  ASSERT_TRUE(folders);
  const std::vector<std::byte> payload(64);
  const Bytes part(payload);
  ASSERT_TRUE((*folders)->write_table(*table));
  ASSERT_TRUE((*folders)->write(encode_shard_head(header), header.key, std::span(&part, 1), {}));
  const std::string whole = std::filesystem::directory_iterator(folder / "net")->path().string();
  std::string shard;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "net")) {
    if (entry.path().extension() == ".shard") shard = entry.path().string();
  }
  const auto other = folder / "net/9.00000000000000010000000000000002.3.9.r0of2.shard";
  std::filesystem::copy_file(shard, other);                                  // Swapped: another's name.
  std::ofstream(folder / "net/8.shard") << "";                               // Emptied.
  std::ofstream(folder / "net/7.x.shard") << std::string(500, 'x');          // Foreign.
  std::filesystem::create_directory(folder / "net/6.shard");                 // No file at all.
  std::filesystem::create_symlink("/etc/hostname", folder / "net/5.shard");  // Somewhere else.
  std::vector<std::string> damaged;
  EXPECT_EQ((*folders)->scan(&damaged).size(), 1U);
  EXPECT_EQ(damaged.size(), 5U);
  // Cut short.
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  EXPECT_TRUE((*folders)->scan().empty());
}

/// Two folders have files of one name. The first one's are of other shards: nothing of them counts, and no part of a
/// head is used that is not there.
TEST(ShardFaults, AFileWithTheHeadOfAnotherShardIsDamaged) {
  const TemporaryFolder first;
  const TemporaryFolder second;
  const auto table = TensorTable::of(some_tensors());
  const auto write = [&](const TemporaryFolder& folder, const ShardHeader& header, const ShardKey& name,
                         ShardKind kind) {
    const auto folders = ShardFolders::open(system_env(), {folder.path()}, "net", 1);
    ASSERT_TRUE(folders);
    ASSERT_TRUE((*folders)->write_table(*table));
    std::vector<std::byte> payload(header.payload_bytes);
    const Digest listed = digest_of(Bytes(payload).first(payload.size() - 16));  // As parity ends.
    store_little_endian(payload.data() + payload.size() - 16, listed.low);
    store_little_endian(payload.data() + payload.size() - 8, listed.high);
    std::vector<Bytes> left = {payload};
    ASSERT_TRUE(
        (*folders)->write_streamed(encode_shard_head(header), name, kind, false, [&]() -> Result<std::optional<Bytes>> {
          if (left.empty()) return std::optional<Bytes>();
          left.clear();
          return std::optional<Bytes>(payload);
        }));
  };
  const ShardHeader shard = some_header(*table);
  ShardHeader parity = some_parity(*table);
  parity.payload_bytes = 5 * 16;
  write(second, shard, shard.key, ShardKind::own);
  write(second, parity, parity.key, ShardKind::parity);
  ShardHeader older = shard;
  older.key.version = shard.versions[1];
  ShardHeader without_parity = shard;
  without_parity.key = parity.key;
  without_parity.payload_bytes = 3 * 16;
  write(first, older, shard.key, ShardKind::own);
  write(first, without_parity, parity.key, ShardKind::parity);

  const auto folders = ShardFolders::open_to_read({first.path(), second.path()}, "net");
  ASSERT_TRUE(folders);
  EXPECT_EQ((*folders)->scan().size(), 2U);
  EXPECT_TRUE(is_refused((*folders)->describe(shard.key, ShardKind::own), Code::corrupt));
  const auto resting = RestingCheckpoints::open({first.path(), second.path()}, std::shared_ptr<Repository>(), "net");
  ASSERT_TRUE(resting);
  VerifyReport report;
  ASSERT_TRUE(resting->verify(report));
  EXPECT_EQ(report.checked_bytes, 0U);
  ASSERT_EQ(report.corrupt.size(), 4U);
  for (const VerifyReport::Corrupt& one : report.corrupt) {
    EXPECT_NE(one.reason.find("another shard"), std::string::npos) << one.reason;
  }
}

TEST(ShardFaults, ACatalogOfDamageAloneNamesTheCommandThatTells) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "net");
  std::ofstream(folder / "net/7.x.shard") << std::string(500, 'x');
  const auto catalog = JobCatalog::open({folder.path()});
  ASSERT_TRUE(catalog) << catalog.error().message();
  EXPECT_TRUE((*catalog)->models()->empty());
  EXPECT_TRUE(is_refused((*catalog)->get({"net", 0}), Code::not_found, "repo verify"));
  EXPECT_EQ((*catalog)->verify({}, {})->corrupt.size(), 1U);
}

}  // namespace
}  // namespace freshet::levels
