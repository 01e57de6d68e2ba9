// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/client/owner_link.h"

#include <exception>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "core/base/text.h"
#include "repo/serve/client/remote.h"

namespace freshet {
namespace rpc {
namespace {

/// A server that is the owner, and cannot answer for another reason, is not left by each call.
constexpr Duration kDoubtAgain = std::chrono::seconds(5);
constexpr ClientTimes kWatchTimes{.idle_ping = std::chrono::milliseconds(500),
                                  .busy_ping = std::chrono::milliseconds(250),
                                  .silence = std::chrono::milliseconds(1500)};

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

Result<std::shared_ptr<Link>> OwnerLink::get() {
  const Time until = deadline_in(options_.takeover);
  Known known;
  {
    const MutexLock lock(mutex_);
    std::uint64_t searches = searches_;
    while (searching_ || searches != searches_) {
      if (searches != searches_) {
        if (link_ != nullptr && !link_->is_dead()) return link_;
        // A search that began before this call says nothing of the time that this call has.
        const bool may_wait = known_.moves && is_absence(*failed_) && system_clock().now() < until;
        if (!may_wait) return fail(*failed_);
        searches = searches_;
        continue;
      }
      searched_.wait_until(mutex_, Interruption::next_look(deadline_in(kDoubtAgain)));
      mutex_.unlock();
      const Status wanted = Interruption::check();
      mutex_.lock();
      FRESHET_TRY(wanted);
    }
    if (link_ != nullptr && !link_->is_dead()) return link_;
    searching_ = true;
    known = known_;
  }
  Result<std::shared_ptr<Link>> opened = search(known);
  {
    const MutexLock lock(mutex_);
    searching_ = false;
    known.doubted.clear();
    known.doubted_link.reset();
    known_ = std::move(known);
    if (opened) {
      link_ = *opened;
    } else if (opened.error().code() != Code::cancelled) {  // Else others search on.
      ++searches_;
      failed_ = opened.error();
    }
  }
  searched_.notify_all();
  return opened;
}

bool OwnerLink::is_lost(const Link& link, const Error& error) {
  if (link.is_dead()) return true;
  if (link.standing() != Standing::moves || error.code() != Code::unavailable) return false;
  const Time now = system_clock().now();
  const MutexLock lock(mutex_);
  if (link_.get() != &link) return true;  // Another thread found that out.
  if (now < believed_until_) return false;
  believed_until_ = now + kDoubtAgain;
  known_.doubted = link.address();
  known_.doubted_link = std::move(link_);
  return true;
}

Result<std::shared_ptr<Link>> OwnerLink::search(Known& known) const {
  OwnerSearch search({.first = first_.address,
                      .others = options_.others,
                      .has_source = options_.find_owner != nullptr,
                      .connect = options_.connect,
                      .takeover = options_.takeover},
                     known, system_clock().now());
  for (;;) {
    FRESHET_TRY(Interruption::check());
    const OwnerSearch::Step step = search.next(system_clock().now());
    if (const auto* const error = std::get_if<Error>(&step)) return fail(*error);
    if (const auto* const pause = std::get_if<OwnerSearch::Wait>(&step)) {
      std::this_thread::sleep_until(pause->until);
    } else if (const auto* const source = std::get_if<OwnerSearch::AskSource>(&step)) {
      search.on_source(ask_source(source->deadline));
    } else {
      const auto& [server, deadline] = std::get<OwnerSearch::AskServer>(step);
      // A server that is only busy keeps its client, and may have no room for another one.
      const std::shared_ptr<Link>& doubted = known.doubted_link;
      if (doubted != nullptr && server.address == known.doubted && !doubted->is_dead()) return doubted;
      Result<std::shared_ptr<Link>> opened = open(server, deadline);
      const bool moves = opened && (*opened)->standing() != Standing::stays;
      if (opened && (*opened)->standing() == Standing::standby) {
        search.on_standby((*opened)->owner());
      } else if (Status same = opened ? recognize(**opened, known, deadline) : Status(fail(opened.error())); !same) {
        search.on_error(std::move(same).error(), moves);
      } else {
        known.moves = search.moves() || moves;
        if (known.moves) known.owner = server;
        return opened;
      }
    }
    known.moves = search.moves();
  }
}

Result<std::shared_ptr<Link>> OwnerLink::open(const ServedOwner& server, Time deadline) const {
  if (server.address == first_.address && server.public_key.empty()) return Link::open(first_, deadline);
  FRESHET_ASSIGN(const SecurityOptions security, security_for(server, options_.security));
  FRESHET_ASSIGN(const Link::Options options, link_options(server.address, security, first_.times));
  return Link::open(options, deadline);
}

ServedOwner OwnerLink::ask_source(Time deadline) const {
  const Interruption ends(deadline);
  try {
    return options_.find_owner().value_or(ServedOwner());
  } catch (const std::exception&) {  // It is the caller's. The others must not wait for this search for ever.
    return {};
  }
}

Status OwnerLink::recognize(Link& opened, Known& known, Time deadline) const {
  if (options_.known_by.empty()) return {};
  FRESHET_ASSIGN(Conversation conversation, opened.begin(call_of<AskShared>(options_.known_by)));
  FRESHET_ASSIGN(const Response response, conversation.next(deadline));
  FRESHET_ASSIGN(SharedRecord record, answer_in<AskShared>(response));
  std::optional<std::string> told = std::move(record.value);
  if (known.repository && told != known.repository) {
    return fail(Code::unavailable, format("another repository is at {} now: {}, not {}", opened.address(),
                                          told ? *told : std::string("which has no id"), *known.repository));
  }
  known.repository = std::move(told);
  return {};
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
