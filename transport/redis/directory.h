// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The directory of many hosts: Redis, through one thread (client.h). What is stored is in scripts.h.
///
/// While the server is away: what is served stays served; claims stand as far as anybody here can know; numbers go on
/// out of the block that was reserved; watches keep what they knew; whatever must be written waits for the patience and
/// is then `unavailable`. When it is back, claims are renewed before anything else, or written again if it lost
/// everything, and everything that is watched is read again.
///
/// How durable a number is: as Redis is. With `appendonly yes` it survives the server's restart. Without, it may be
/// forgotten by a restart while its publisher is dead too; a subscriber that saw it makes the next publisher number
/// above it.

#include <memory>
#include <string>

#include "transport/directory/directory.h"
#include "transport/directory/host_directory.h"
#include "transport/redis/claim.h"
#include "transport/redis/client.h"
#include "transport/redis/watch.h"

namespace freshet {

/// Any thread.
class RedisDirectory final : public Directory {
 public:
  /// The server need not be there. `host`: for the sockets of this host.
  static Result<std::unique_ptr<RedisDirectory>> open(RedisAddress address, RedisTimes times,
                                                      std::unique_ptr<HostDirectory> host);

  Result<std::unique_ptr<Claim>> claim(const std::string& model) override;
  Result<Entry> lookup(const std::string& model) override;
  Result<std::vector<Entry>> list() override;
  Result<std::unique_ptr<Watch>> watch(const std::string& model) override { return watch(model, false); }
  Result<std::unique_ptr<Watch>> watch_commits(const std::string& model) override { return watch(model, true); }
  bool carries_announcements() const override { return true; }
  void announce(const std::string& model, const std::string& announcement) override;
  Result<CurrentVersion> current(const std::string& model) override;
  Result<CurrentVersion> compare_and_swap_current(const std::string& model, const CurrentVersion& expected,
                                                  const CurrentVersion& desired) override;
  Status serve(const std::string& model, const Server& server, Duration time_to_live) override;
  Status stop_serving(const std::string& model, const std::string& address) override;
  Result<std::vector<Server>> servers(const std::string& model) override;
  Result<bool> tend() override { return host_->tend(); }
  std::string text() const override { return parts_->client->address().text(); }
  std::string health() const override { return parts_->client->health(); }
  const std::string& folder() const override { return host_->folder(); }

 private:
  /// Shared with claims and watches, which may outlive the directory. The client goes first, and with it the thread
  /// that calls the others.
  struct Parts {
    std::unique_ptr<redis::Keeper> keeper;
    std::unique_ptr<redis::Follower> follower;
    std::unique_ptr<RedisClient> client;
  };

  RedisDirectory(std::unique_ptr<HostDirectory> host, std::shared_ptr<Parts> parts)
      : host_(std::move(host)), parts_(std::move(parts)) {}
  Result<std::unique_ptr<Watch>> watch(const std::string& model, bool commits);
  Result<redis::Look> look(const std::string& model);
  std::uint32_t database() const { return parts_->client->address().database; }

  const std::unique_ptr<HostDirectory> host_;
  const std::shared_ptr<Parts> parts_;
};

}  // namespace freshet
