// SPDX-License-Identifier: Apache-2.0
/// The repository in Ceph: the conformance suite of backends; owners that are killed and stopped; a client with a
/// keyring.

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>

#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/conformance/backend_conformance.h"
#include "tests/fault/crash_writer.h"
#include "tests/repo/rados/shared_cluster.h"
#include "tests/repo/world.h"
#include "tests/support/child_process.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

const BackendCase kRados{.name = "rados", .open = [](const std::string& folder) { return open_in_ceph(folder); }};

INSTANTIATE_TEST_SUITE_P(Rados, BackendConformance, testing::Values(kRados),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Rados, DurableBackendConformance, testing::Values(kRados),
                         [](const auto& instance) { return instance.param.name; });

std::string address_of(const RadosAddress& place) { return ceph().address(place.repository); }

/// Puts version after version, until it is killed.
class CrashWriter {
 public:
  explicit CrashWriter(const RadosAddress& place) : process_({test::built(FRESHET_CRASH_WRITER), address_of(place)}) {}
  bool is_ready() { return process_.line() == "ready"; }
  /// The number of the next acknowledged version; nothing once it has ended.
  std::optional<VersionNumber> next() {
    const auto line = process_.line();
    return line ? std::optional(std::stoull(*line)) : std::nullopt;
  }
  ChildProcess& process() { return process_; }

 private:
  ChildProcess process_;
};

/// Each version that a killed writer acknowledged is there, whole, and none is half there.
VersionNumber check_versions(Repository& repository, VersionNumber acknowledged) {
  const VersionNumber newest = repository.latest("crash").value_or(0);
  EXPECT_GE(newest, acknowledged);
  EXPECT_LE(newest, acknowledged + 1);  // One whose acknowledgement was not written any more.
  for (VersionNumber number = 1; number <= newest; ++number) {
    const auto bytes = read_all(repository, {.model = "crash", .number = number});
    EXPECT_TRUE(bytes && *bytes == crash_version(number).bytes) << "version " << number;
  }
  const auto report = repository.verify(std::nullopt, {});
  EXPECT_TRUE(report && report->corrupt.empty());
  return newest;
}

TEST(RadosCrash, WhatAKilledWriterAcknowledgedIsThere) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const RadosAddress place = a_new_place_in_ceph();
  VersionNumber acknowledged = 0;
  for (int round = 0; round < 2; ++round) {
    CrashWriter writer(place);
    ASSERT_TRUE(writer.is_ready());
    const auto stop_after = acknowledged + 1 + random() % 6;
    while (acknowledged < stop_after) {
      const auto next = writer.next();
      ASSERT_TRUE(next);
      acknowledged = *next;
    }
    random.discard(random() % 3'000'000);  // It is in the middle of a put now, or between two.
    ASSERT_TRUE(WIFSIGNALED(writer.process().end(SIGKILL)));
    while (const auto next = writer.next()) acknowledged = *next;
    auto backend = open_in_ceph(place);
    ASSERT_TRUE(backend) << backend.error().message();
    const auto repository = open_or_die(std::move(*backend));
    acknowledged = check_versions(*repository, acknowledged);
  }
}

/// An owner is stopped amid its puts, another process takes the repository over, and the first one goes on.
TEST(RadosCrash, AStoppedWriterThatGoesOnIsKeptOut) {
  const RadosAddress place = a_new_place_in_ceph();
  CrashWriter writer(place);
  ASSERT_TRUE(writer.is_ready());
  VersionNumber acknowledged = 0;
  while (acknowledged < 3) acknowledged = writer.next().value_or(3);
  writer.process().stop();
  auto backend = open_in_ceph(place);
  ASSERT_TRUE(backend) << backend.error().message();
  const auto repository = open_or_die(std::move(*backend));
  const VersionNumber before = repository->latest("crash").value_or(0);
  ASSERT_TRUE(put(*repository, crash_version(before + 1)));
  writer.process().go_on();
  while (const auto next = writer.next()) acknowledged = *next;
  EXPECT_EQ(WEXITSTATUS(writer.process().wait()), 1) << "it ends with an error";
  EXPECT_LE(acknowledged, before) << "it acknowledged nothing afterwards";
  EXPECT_EQ(check_versions(*repository, before + 1), before + 1);
}

TEST(RadosBackend, OneProcessOwnsItAndOthersReadBesideIt) {
  const RadosAddress place = a_new_place_in_ceph();
  EXPECT_EQ(open_in_ceph(place, /*read_only=*/true).error().code(), Code::not_found);
  const auto owner = open_in_ceph(place);
  ASSERT_TRUE(owner) << owner.error().message();
  ASSERT_TRUE((*owner)->apply({Backend::Put{"a", "1"}}));
  EXPECT_TRUE(is_refused(open_in_ceph(place), Code::unavailable));
  RadosAddress for_reader = place;
  for_reader.user = "reader";
  const auto reader = open_in_ceph(for_reader, /*read_only=*/true);
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ((*reader)->get("a").value_or("?"), "1");
  EXPECT_TRUE(is_refused(open_in_ceph(for_reader), Code::failed_precondition, "client.reader has no right to do this"));
}

/// The bytes that a client moves by its own keyring.
class CountedKeyring final : public SignedObjects {
 public:
  explicit CountedKeyring(std::shared_ptr<RadosStore> store) : store_(std::move(store)) {}
  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    const Status read = store_->read(request, offset, out, deadline);
    if (read) bytes += out.size();
    return read;
  }
  Creation create(const SignedRequest& request, Bytes sent, Time deadline) override {
    Creation made = store_->create(request, sent, deadline);
    if (made.outcome == Created::created) sent_bytes += sent.size();
    return made;
  }
  mutable std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> sent_bytes{0};

 private:
  const std::shared_ptr<RadosStore> store_;
};

TEST(RadosDirect, AClientWithAKeyringMovesLargeTensorsItself) {
  const RadosAddress place = a_new_place_in_ceph();
  auto backend = open_in_ceph(place);
  ASSERT_TRUE(backend) << backend.error().message();
  const auto local = open_or_die(std::move(*backend));
  const TemporaryFolder folder;
  const auto server = RepositoryServer::open(*local, {.address = "ipc://" + folder.path() + "/socket"});
  ASSERT_TRUE(server) << server.error().message();
  std::mt19937_64 random(5);
  constexpr std::uint64_t kLarge = (std::uint64_t{64} << 20) + 4096;  // Of two parts.
  std::uint64_t id = 0;
  for (const bool has_keyring : {true, false}) {
    const TestVersion version =
        make_version("net", test_id(++id), test_architecture({kLarge, 100, 2'000'000}), nullptr, {}, random);
    const auto line = std::make_shared<CountedKeyring>(*open_rados_store(place));
    RemoteRepositoryOptions remote;
    if (has_keyring) remote.signed_objects = line;
    const auto client = connect_repository((*server)->address(), std::move(remote));
    ASSERT_TRUE(client) << client.error().message();
    const auto stored = put(**client, version);
    ASSERT_TRUE(stored) << stored.error().message();
    const auto read = read_all(**client, *stored);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(*read == version.bytes);
    const std::uint64_t moved = has_keyring ? kLarge + 2'000'000 : 0;
    EXPECT_EQ(line->sent_bytes, moved);
    EXPECT_EQ(line->bytes, moved);
  }
}

}  // namespace
}  // namespace freshet
