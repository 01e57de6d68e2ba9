// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A name owned in Redis: the owner's side, and the side on the client's thread that keeps it.

#include <map>
#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "transport/redis/client.h"
#include "transport/redis/lease.h"

namespace freshet::redis {

/// What both sides share. Any thread.
struct SharedLease {
  SharedLease(std::string name, Owner holder, Lease lease_of_it)
      : model(std::move(name)), owner(std::move(holder)), lease(std::move(lease_of_it)) {}
  const std::string model;
  const Owner owner;
  Mutex mutex;
  CondVar changed;
  Lease lease FRESHET_GUARDED_BY(mutex);
  bool owner_ends FRESHET_GUARDED_BY(mutex) = false;  ///< It waits no more.
};

/// Keeps leases. Belongs to the client's thread.
class Keeper final : public RedisClient::Guest {
 public:
  explicit Keeper(RedisClient& client) : client_(client) {}

  void add(std::shared_ptr<SharedLease> lease);
  void remove(const std::string& owner) { leases_.erase(owner); }

  void on_commands_ready(Time now) override;
  Time on_time(Time now) override;

 private:
  void keep(const std::shared_ptr<SharedLease>& lease, Time now);
  void on_kept(const std::shared_ptr<SharedLease>& lease, const Result<RedisReply>& reply);

  RedisClient& client_;
  std::map<std::string, std::shared_ptr<SharedLease>> leases_;  ///< By owner.
};

class RedisClaim final : public Directory::Claim {
 public:
  /// Waits: for the name's quarantine in a young directory, and for the server.
  static Result<std::unique_ptr<Directory::Claim>> take(std::shared_ptr<RedisClient> client,
                                                        std::shared_ptr<Keeper> keeper, const std::string& model);
  ~RedisClaim() override;

  VersionNumber last_number() const override;
  Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) override;
  Status record_number(VersionNumber number) override;
  void stop_waiting() override;
  Status advertise(const Directory::Entry& entry) override;
  Status standing() const override;
  CurrentVersion current() const override;
  void swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) override;

 private:
  RedisClaim(std::shared_ptr<RedisClient> client, std::shared_ptr<Keeper> keeper, std::shared_ptr<SharedLease> shared)
      : client_(std::move(client)), keeper_(std::move(keeper)), shared_(std::move(shared)) {}
  Status wait_until_kept(std::uint64_t revision, const std::string& what);
  void nudge();

  const std::shared_ptr<RedisClient> client_;
  const std::shared_ptr<Keeper> keeper_;
  const std::shared_ptr<SharedLease> shared_;
};

}  // namespace freshet::redis
