// SPDX-License-Identifier: Apache-2.0
/// Where the repository is: at one address, or where its owner is by now.

#include <algorithm>
#include <thread>

#include "core/base/interruption.h"
#include "core/base/text.h"
#include "repo/serve/client/remote.h"

namespace freshet {
namespace rpc {
namespace {

constexpr Duration kReachOneOfSeveral = std::chrono::seconds(2);
constexpr Duration kReachAgain = std::chrono::milliseconds(200);
/// Standbys that tell of each other end the round.
constexpr std::size_t kReachedMax = 32;
constexpr ClientTimes kWatchTimes{.idle_ping = std::chrono::milliseconds(500),
                                  .busy_ping = std::chrono::milliseconds(250),
                                  .silence = std::chrono::milliseconds(1500)};

bool is_absence(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

Result<Link::Options> link_options(const std::string& address, const SecurityOptions& security, ClientTimes times) {
  FRESHET_ASSIGN(std::optional<ClientCredentials> credentials, client_credentials(security));
  const Neighbours believed = neighbours_admitted(security, credentials.has_value());
  return Link::Options{.address = address, .credentials = std::move(credentials), .believed = believed, .times = times};
}

class LinkWatch final : public ServerWatch {
 public:
  LinkWatch(std::string address, const SecurityOptions& security) : address_(std::move(address)), security_(security) {}

  Seen look() override {
    if (link_ == nullptr || link_->is_dead() || link_->standing() == Standing::standby) {
      const auto options = link_options(address_, security_, kWatchTimes);
      if (!options) return Seen::silent;  // Nobody was asked.
      link_.reset();
      auto opened = Link::open(*options, deadline_in(kWatchTimes.silence));
      if (!opened) return is_absence(opened.error()) ? Seen::silent : Seen::refuses;
      link_ = std::move(*opened);
    }
    return link_->standing() == Standing::standby ? Seen::standby : Seen::owner;
  }

 private:
  const std::string address_;
  const SecurityOptions security_;
  std::shared_ptr<Link> link_;
};

}  // namespace

Result<std::shared_ptr<Link>> RemoteRepository::link() const {
  const MutexLock lock(mutex_);
  if (link_ != nullptr && !link_->is_dead()) return link_;
  // Under the lock: whoever else wants the connection has to wait for it anyhow, no longer than this may take.
  Result<std::shared_ptr<Link>> opened = reach(deadline_in(options_.connect));
  const Time deadline = deadline_in(options_.takeover);
  while (!opened && moves_ && is_absence(opened.error()) && system_clock().now() < deadline) {
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_for(kReachAgain);
    opened = reach(deadline);
  }
  if (opened) link_ = *opened;
  return opened;
}

std::vector<ServedOwner> RemoteRepository::known_servers() const {
  std::vector<ServedOwner> servers;
  if (owner_) servers.push_back(*owner_);
  servers.push_back({.address = link_options_.address, .public_key = {}});
  if (!moves_) return servers;
  for (const std::string& other : options_.others) servers.push_back({.address = other, .public_key = {}});
  return servers;
}

Result<std::shared_ptr<Link>> RemoteRepository::reach(Time deadline) const {
  std::vector<ServedOwner> servers = known_servers();
  std::optional<Error> last;
  bool was_asked = !options_.find_owner;
  for (std::size_t i = 0; i < servers.size() && i < kReachedMax; ++i) {
    const ServedOwner server = servers[i];
    const bool is_known =
        std::ranges::find(servers.begin(), servers.begin() + static_cast<std::ptrdiff_t>(i), server.address,
                          &ServedOwner::address) != servers.begin() + static_cast<std::ptrdiff_t>(i);
    if (!is_known) {
      const Time until = moves_ ? std::min(deadline, deadline_in(kReachOneOfSeveral)) : deadline;
      Result<std::shared_ptr<Link>> opened = reach_one(server, until);
      if (opened && (*opened)->standing() != Standing::standby) {
        const bool moves = moves_ || (*opened)->standing() == Standing::moves;
        const Status known = options_.known_by.empty() ? Status() : recognize(**opened, deadline);
        if (known) {
          moves_ = moves;
          if (moves) owner_ = server;
          return opened;
        }
        if (!moves || !is_absence(known.error())) return fail(known.error());
        moves_ = true;
        last = known.error();
      } else if (opened) {
        moves_ = true;
        const ServedOwner& owner = (*opened)->owner();
        if (!owner.address.empty()) servers.push_back(owner);
        if (!last) last = Error(Code::unavailable, format("{} stands by, and no owner can be reached", server.address));
      } else if (!moves_ || !is_absence(opened.error())) {
        return opened;
      } else {
        last = std::move(opened).error();
      }
    }
    if (i + 1 == servers.size() && !std::exchange(was_asked, true)) {
      const Result<ServedOwner> found = options_.find_owner();
      if (found && !found->address.empty()) servers.push_back(*found);
    }
  }
  return fail(last.value_or(Error(Code::unavailable, "no owner of the repository can be reached")));
}

Result<std::shared_ptr<Link>> RemoteRepository::reach_one(const ServedOwner& server, Time deadline) const {
  if (server.address == link_options_.address && server.public_key.empty()) return Link::open(link_options_, deadline);
  FRESHET_ASSIGN(const SecurityOptions security, security_for(server, options_.security));
  FRESHET_ASSIGN(const Link::Options options, link_options(server.address, security, link_options_.times));
  return Link::open(options, deadline);
}

}  // namespace rpc

Result<SecurityOptions> security_for(const ServedOwner& server, SecurityOptions security) {
  if (server.public_key.empty()) return security;
  if (security.key_file.empty()) {
    return fail(Code::failed_precondition,
                format("the repository's owner at {} takes keys: give --keys", server.address));
  }
  if (security.server_key.empty()) {
    security.server_key = server.public_key;
    return security;
  }
  FRESHET_ASSIGN(const PublicKey given, read_public_key(security.server_key));
  if (given.text() == server.public_key) return security;
  return fail(Code::failed_precondition,
              format("the repository's owner at {} has the public key {}, not the given server key", server.address,
                     shown(server.public_key, kKeyTextBytes)));
}

bool may_move(const ProviderRepository& connected) {
  const auto* const remote = dynamic_cast<const rpc::RemoteRepository*>(&connected);
  return remote != nullptr && remote->may_move();
}

std::unique_ptr<ServerWatch> ServerWatch::of(std::string address, const SecurityOptions& security) {
  return std::make_unique<rpc::LinkWatch>(std::move(address), security);
}

}  // namespace freshet
