// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The source of the data channels of a repository's server: leases on bytes that a client is about to read, and the
/// memory in which these bytes wait for their turn on the wire. Private to this folder.
///
/// A lease names ranges of one version's tensors, or of segments. It is one session's, and lives until its client ends
/// it, until it was not renewed in time, or until the session ends. While it lives, and while anything of it is still
/// being read, gc() leaves its blobs (ProviderRepository::keep_readable).
///
/// Bytes are read into staging memory, of which there is a fixed amount: one block of consecutive pieces after another,
/// a few of them ahead of what is being sent, on threads of their own. A block's memory comes back when the channel has
/// sent it. Where there is no memory, a fetch waits for that of others; no session, and no key, can have more than
/// half. A client that does not take the bytes that were read for it loses its connection, so that no client can keep
/// memory that it does not use.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/backend/touched_memory.h"
#include "repo/provider_repository.h"
#include "repo/serve/server/workers.h"
#include "transport/channel/channel.h"
#include "transport/source/lease_book.h"

namespace freshet::rpc {

using channel::LeaseId;
using protocol::SessionId;

/// Any thread.
class ReadDesk final : public channel::FetchSource {
 public:
  struct Limits {
    std::uint64_t staging_bytes = std::uint64_t{32} << 20;
    std::uint64_t block_bytes = std::uint64_t{1} << 20;  ///< Of a piece at most.
    std::uint64_t ahead_bytes = std::uint64_t{4} << 20;  ///< Read for one fetch and not sent; a block at least.
    Duration lifetime = std::chrono::seconds(30);        ///< Of a lease that is not renewed.
    Duration stall = std::chrono::seconds(10);           ///< What was read is not taken for so long.
    std::size_t leases_max = 4096;
    std::size_t leases_per_session_max = 64;
    std::size_t leases_per_key_max = 1024;         ///< Of its sessions together.
    std::size_t parts_max = std::size_t{1} << 20;  ///< Of all leases together; of a key's, half.
  };
  /// `repository` outlives it. `seed` is a secret: leases cannot be guessed by who does not know it.
  ReadDesk(const ProviderRepository& repository, Limits limits, std::uint64_t seed)
      : repository_(repository), limits_(limits), seed_(seed) {}
  /// REQUIRES: no OpenFetch is left.
  ~ReadDesk() override { stop(); }

  /// Its memory and its threads, once, when somebody first asks for a lease. out_of_space, unavailable.
  Status start(std::size_t readers);
  /// Waits for reads that were begun; nothing more is read, and nobody called.
  void stop() { readers_.stop(); }
  /// Called whenever something that could not be answered may be by now; any thread, never under a lock.
  void on_ready(std::function<void()> look_again) { look_again_ = std::move(look_again); }
  Bytes staging() const { return staging_->memory(); }
  const Limits& limits() const { return limits_; }

  /// `key`: its client's; empty without keys.
  void begin_session(SessionId session, std::string_view key = {}) FRESHET_EXCLUDES(mutex_);
  void end_session(SessionId session) FRESHET_EXCLUDES(mutex_);

  struct Part {
    std::uint32_t tensor = 0;  ///< Of a version.
    SegmentName segment;       ///< Otherwise.
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  struct Subject {
    std::shared_ptr<const VersionRecord> record;  ///< Null for segments.
    std::vector<Part> parts;
    VersionNumber version() const { return record == nullptr ? 0 : record->manifest.name.number; }
  };
  /// Piece.tensor of a fetch is an index into the subject's parts, its offset counts from the part's.
  /// invalid_argument for bytes that are not there, not_found for what is not stored any more, out_of_space when there
  /// are too many leases, unavailable when the session has ended.
  Result<LeaseId> lend(SessionId session, Subject subject, Time now) FRESHET_EXCLUDES(mutex_);
  /// failed_precondition for one that is not living.
  Status renew(SessionId session, LeaseId lease, Time now) FRESHET_EXCLUDES(mutex_);
  void end(SessionId session, LeaseId lease) FRESHET_EXCLUDES(mutex_);

  /// About each second. The sessions whose fetches are to be cut off by force.
  std::vector<SessionId> on_tick(Time now) FRESHET_EXCLUDES(mutex_);

  Result<std::unique_ptr<channel::OpenFetch>> open(const channel::FetchRequest& request) override
      FRESHET_EXCLUDES(mutex_);

  struct Stat {
    std::size_t leases = 0;
    std::size_t fetches = 0;
    std::uint64_t staged_bytes = 0;
  };
  Stat stat() const FRESHET_EXCLUDES(mutex_);

 private:
  class Fetch;
  struct Lease : source::Leased {
    Subject subject;
    std::shared_ptr<const void> kept;
    Time moved{};  ///< When something of it was last read or sent.
    std::uint64_t staged = 0;
  };
  struct Session {
    std::string key;
    std::size_t leases = 0;
    std::size_t parts = 0;
    std::uint64_t staged = 0;
  };
  /// The sum over the sessions of its key; without a key, over its own.
  Session sum_of_key(const Session& session) const FRESHET_REQUIRES(mutex_);
  std::optional<Error> why_no_lease(const Session& session, std::size_t parts) const FRESHET_REQUIRES(mutex_);
  enum class Step : std::uint8_t { waiting, reading, ready, sent };
  /// Consecutive pieces of a fetch, one after another in one piece of staging memory.
  struct Block {
    std::size_t first = 0;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    Step step = Step::waiting;
    std::size_t sent = 0;  ///< Of its pieces.
    TouchedMemory::Piece memory{};
  };
  /// A request that was allowed. Its blocks are read and sent in their order.
  struct Reading {
    std::shared_ptr<Lease> lease;
    std::vector<channel::Piece> pieces;
    std::vector<std::uint64_t> places;  ///< Of each piece, in its block's memory.
    std::vector<std::uint32_t> block_of;
    std::vector<Block> blocks;
    std::size_t next = 0;      ///< The first block that was not begun.
    std::uint64_t staged = 0;  ///< Bytes that it has of the staging memory.
    bool hungry = false;       ///< It is in hungry_.
    bool abandoned = false;
    Status failed;
  };
  using Job = std::pair<std::shared_ptr<Reading>, std::size_t>;

  static void lay_out(Reading& reading, std::uint64_t block_bytes);
  Status check(const std::vector<channel::Piece>& pieces, const Subject& subject) const;
  Status check(const Subject& subject) const;
  void close(LeaseId id) FRESHET_REQUIRES(mutex_);
  /// Takes memory for the blocks that come next, and says what is to be read into it.
  void feed(const std::shared_ptr<Reading>& reading, std::vector<Job>& jobs) FRESHET_REQUIRES(mutex_);
  void feed_hungry(std::vector<Job>& jobs) FRESHET_REQUIRES(mutex_);
  void give_back(Reading& reading, Block& block) FRESHET_REQUIRES(mutex_);
  void post(std::vector<Job> jobs);
  void read(const Job& job) FRESHET_EXCLUDES(mutex_);
  Status read_block(const Reading& reading, const Block& block) const;
  Status read_piece(const Subject& subject, const channel::Piece& piece, MutableBytes out) const;
  bool has_room(SessionId session, std::uint64_t bytes) const FRESHET_REQUIRES(mutex_);

  const ProviderRepository& repository_;
  const Limits limits_;
  const std::uint64_t seed_;
  std::function<void()> look_again_;
  std::shared_ptr<TouchedMemory> staging_;
  mutable Mutex mutex_;
  std::uint64_t leases_made_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::size_t parts_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::uint64_t staged_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::unordered_map<SessionId, Session> sessions_ FRESHET_GUARDED_BY(mutex_);
  source::LeaseBook<Lease> leases_ FRESHET_GUARDED_BY(mutex_);
  std::deque<std::weak_ptr<Reading>> hungry_ FRESHET_GUARDED_BY(mutex_);
  Workers readers_;
};

}  // namespace freshet::rpc
