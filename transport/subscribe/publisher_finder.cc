#include "transport/subscribe/publisher_finder.h"

#include <algorithm>

#include "core/format.h"
#include "core/text.h"

namespace freshet {
namespace {

/// How often the directory is looked at where its news cannot be heard, or was lost.
constexpr Duration kLookAgain = std::chrono::seconds(2);
constexpr Duration kLookAgainMax = std::chrono::seconds(32);
constexpr Duration kFirstAnswer = std::chrono::seconds(1);

}  // namespace

bool PublisherFinder::take_news() {
  if (!watch_->take()) return false;
  hurry();
  if (found_.model.empty()) return false;
  const auto entry = watch_->entry();
  return entry && (entry->incarnation != found_.incarnation || entry->control != found_.control);
}

void PublisherFinder::on_connected() { looks_in_vain_ = 0; }

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
  if (!entry) {
    found_ = {};
    return fail(std::move(entry).error());
  }
  found_ = std::move(*entry);
  return usable_address(found_);
}

bool PublisherFinder::worth_telling(Time now) const {
  return unavailable_since_ && now - *unavailable_since_ >= kFirstAnswer;
}

Result<std::string> PublisherFinder::usable_address(const Directory::Entry& entry) const {
  const bool same_host = entry.host.empty() || entry.host == host_;
  const auto usable = [&](const std::string& address) { return same_host || !address.starts_with("ipc://"); };
  if (usable(entry.control)) return entry.control;
  const auto other = std::find_if(entry.also.begin(), entry.also.end(), usable);
  if (other != entry.also.end()) return *other;
  return fail(Code::failed_precondition,
              format("{} is published on another host, at {}, which only that host can reach: let it listen on TCP",
                     model_, shown(entry.control)));
}

}  // namespace freshet
