// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/publisher_finder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/digest.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

/// How often the directory is looked at where its news cannot be heard, or was lost.
constexpr Duration kLookAgain = std::chrono::seconds(2);
constexpr Duration kLookAgainMax = std::chrono::seconds(32);
/// How long one of several may be silent.
constexpr Duration kLookForOthers = std::chrono::seconds(1);
constexpr Duration kFirstAnswer = std::chrono::seconds(1);

constexpr std::string_view kIpcPrefix = "ipc://";

/// Of what this_host() says: whether both run under one kernel, in whatever network.
bool is_same_boot(std::string_view one, std::string_view other) {
  const std::string_view boot = one.substr(0, one.find('/'));
  return !boot.empty() && boot == other.substr(0, other.find('/'));
}

/// The name of a hub's socket has a random part, so a file of that name is the hub's.
bool is_socket(const std::string& address) {
  std::error_code failure;
  return std::filesystem::is_socket(address.substr(kIpcPrefix.size()), failure);
}

}  // namespace

bool PublisherFinder::take_news() {
  if (!watch_->take()) return false;
  heard_ = true;
  hurry();
  if (found_.model.empty()) return false;
  const auto entry = watch_->entry();
  if (const std::size_t known = relays().size(); known > 0) others_ = known > 1 || entry.has_value();
  return entry && (entry->incarnation != found_.incarnation || entry->control != found_.control);
}

std::optional<CurrentVersion> PublisherFinder::take_current() {
  if (!std::exchange(heard_, false)) return std::nullopt;
  const auto record = watch_->current();
  return record ? std::optional(*record) : std::nullopt;
}

void PublisherFinder::on_connected() {
  looks_in_vain_ = 0;
  answered_ = true;
}

std::vector<std::string> PublisherFinder::relays() const {
  std::vector<std::pair<std::uint64_t, std::string>> ordered;
  const auto servers = relays_ ? watch_->servers() : Result<std::vector<Directory::Server>>();
  if (!servers) return {};
  for (const Directory::Server& server : *servers) {
    // Where a socket of a file system is, nobody says.
    if (server.address.starts_with("ipc://")) continue;
    const std::string text = format("{}/{}", *relays_, server.address);
    ordered.emplace_back(digest_of(bytes_of(text.data(), text.size())).low, server.address);
  }
  std::sort(ordered.begin(), ordered.end());
  std::vector<std::string> addresses;
  for (auto& [order, address] : ordered) addresses.push_back(std::move(address));
  return addresses;
}

/// The one that answered last stays; one that did not gives way to the next.
std::string PublisherFinder::choose(std::vector<std::string> addresses) {
  const auto at = std::find(addresses.begin(), addresses.end(), address_);
  const bool answered = std::exchange(answered_, false);
  others_ = addresses.size() > 1;
  const bool stays = answered && at != addresses.end();
  if (!stays) address_ = at == addresses.end() || std::next(at) == addresses.end() ? addresses.front() : *std::next(at);
  return address_;
}

Result<std::string> PublisherFinder::look(Time now) {
  auto entry = watch_->entry();
  const bool again = entry && *entry == found_;
  looks_in_vain_ = again ? looks_in_vain_ + 1 : 0;
  look_at_ = now + std::min(kLookAgainMax, kLookAgain * (1 << std::min(looks_in_vain_, 4)));
  // Its news may have been lost, and what it says be long past.
  if (again || !entry) watch_->look_again();
  const bool unavailable = !entry && entry.error().code() == Code::unavailable;
  if (!unavailable) unavailable_since_.reset();
  if (unavailable && !unavailable_since_) unavailable_since_ = now;
  std::vector<std::string> addresses = relays();
  others_ = false;
  if (!addresses.empty()) look_at_ = now + kLookForOthers;
  if (!entry) {
    found_ = {};
    if (addresses.empty()) return fail(std::move(entry).error());
    return choose(std::move(addresses));
  }
  found_ = std::move(*entry);
  auto publisher = usable_address(found_);
  if (addresses.empty()) return publisher;
  if (publisher && std::find(addresses.begin(), addresses.end(), *publisher) == addresses.end()) {
    addresses.push_back(std::move(*publisher));
  }
  return choose(std::move(addresses));
}

bool PublisherFinder::worth_telling(Time now) const {
  return unavailable_since_ && now - *unavailable_since_ >= kFirstAnswer;
}

Result<std::string> PublisherFinder::usable_address(const Directory::Entry& entry) const {
  const bool same_host = entry.host.empty() || entry.host == host_;
  // A container with a network of its own may still share the folder of the socket.
  const auto usable = [&](const std::string& address) {
    return same_host || !address.starts_with(kIpcPrefix) || (is_same_boot(entry.host, host_) && is_socket(address));
  };
  if (usable(entry.control)) return entry.control;
  const auto other = std::find_if(entry.also.begin(), entry.also.end(), usable);
  if (other != entry.also.end()) return *other;
  return fail(Code::failed_precondition, format("{} is published on another host, at {}, which only that host can "
                                                "reach: start the publisher with --listen tcp://…",
                                                model_, shown(entry.control)));
}

}  // namespace freshet
