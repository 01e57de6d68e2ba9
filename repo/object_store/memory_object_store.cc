// SPDX-License-Identifier: Apache-2.0
#include "repo/object_store/memory_object_store.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr std::string_view kMemoryUrl = "memory:";
constexpr Duration kMemoryLifeMin = std::chrono::seconds(1);
constexpr Duration kMemoryLifeMax = std::chrono::hours(1);

Bytes bytes_of_text(std::string_view text) { return bytes_of(text.data(), text.size()); }
std::string text_of_bytes(Bytes bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Error lost() { return Error(Code::timed_out, "memory store: no answer before the deadline"); }
Error too_busy() { return Error(Code::unavailable, "memory store: it is too busy"); }

/// What a signed request of this store says: "VERB END_NS BYTES CRC KEY".
struct MemoryTicket {
  bool creates = false;
  std::int64_t ends_ns = 0;
  std::uint64_t bytes = 0;
  std::uint64_t crc32c = 0;
  std::string_view key;
};

SignedRequest sign_ticket(const MemoryTicket& ticket) {
  return {.url = format("{}{} {} {} {} {}", kMemoryUrl, ticket.creates ? "create" : "get", ticket.ends_ns, ticket.bytes,
                        ticket.crc32c, ticket.key),
          .headers = {}};
}

Result<MemoryTicket> read_ticket(std::string_view url) {
  const auto damaged = [] {
    return fail(Code::failed_precondition, "memory store: this is no request that it signed");
  };
  if (!url.starts_with(kMemoryUrl)) return damaged();
  url.remove_prefix(kMemoryUrl.size());
  const auto word = [&] {
    const auto end = std::min(url.find(' '), url.size());
    const std::string_view found = url.substr(0, end);
    url.remove_prefix(std::min(end + 1, url.size()));
    return found;
  };
  const auto number = [&](auto& value) {
    const std::string_view digits = word();
    return std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc();
  };
  MemoryTicket ticket;
  ticket.creates = word() == "create";
  if (!number(ticket.ends_ns) || !number(ticket.bytes) || !number(ticket.crc32c)) return damaged();
  ticket.key = url;
  return ticket;
}

Status check_life(Duration life) {
  if (life >= kMemoryLifeMin && life <= kMemoryLifeMax) return {};
  return refuse("sign a request: give it a life of 1 s to 1 h");
}

Creation refused_creation(Error error) { return {.outcome = Created::refused, .error = std::move(error)}; }

}  // namespace

MemoryObjectStore::MemoryObjectStore(MemoryObjectFaults faults, const Clock& clock)
    : clock_(clock), faults_(std::move(faults)), random_(faults_.seed) {}
MemoryObjectStore::~MemoryObjectStore() = default;

void MemoryObjectStore::set_faults(MemoryObjectFaults faults) {
  const MutexLock lock(mutex_);
  faults_ = std::move(faults);
  random_.seed(faults_.seed);
}

std::size_t MemoryObjectStore::late_writes() const {
  const MutexLock lock(mutex_);
  return late_.size();
}

void MemoryObjectStore::do_late_writes() {
  const MutexLock lock(mutex_);
  while (!late_.empty()) {
    const auto next = late_.begin() + static_cast<std::ptrdiff_t>(draw(late_.size()));
    static_cast<void>(apply(next->write));
    late_.erase(next);
  }
}

std::uint64_t MemoryObjectStore::draw(std::uint64_t below) const { return below == 0 ? 0 : random_() % below; }

void MemoryObjectStore::do_due() const {
  for (auto late = late_.begin(); late != late_.end();) {
    if (late->at_call > calls_) {
      ++late;
      continue;
    }
    static_cast<void>(apply(late->write));
    late = late_.erase(late);
  }
}

MemoryObjectStore::Fate MemoryObjectStore::begin(bool is_write, Time deadline) const {
  std::function<void(Duration)> on_delay;
  Duration delay = Duration::zero();
  Fate fate = Fate::done;
  {
    const MutexLock lock(mutex_);
    ++calls_;
    do_due();
    if (faults_.on_delay && faults_.delay_max > Duration::zero()) {
      on_delay = faults_.on_delay;
      delay = Duration(static_cast<Duration::rep>(draw(static_cast<std::uint64_t>(faults_.delay_max.count()) + 1)));
    }
    std::uint64_t point = draw(1000);
    const auto hits = [&](unsigned thousandths) {
      const bool hit = point < thousandths;
      point -= hit ? 0 : thousandths;
      return hit;
    };
    if (hits(faults_.busy)) {
      fate = Fate::busy;
    } else if (hits(faults_.lost_request)) {
      fate = Fate::lost_request;
    } else if (hits(faults_.lost_answer)) {
      fate = Fate::lost_answer;
    } else if (is_write && hits(faults_.late)) {
      fate = Fate::late;
    } else if (is_write && hits(faults_.twice)) {
      fate = Fate::twice;
    }
  }
  // Out of the lock: a simulator may turn its clock, and let others act.
  if (on_delay) on_delay(delay);
  // The deadline is of the machine's clock, as everywhere; a store of the simulator's clock has none but its faults.
  if (fate == Fate::done && system_clock().now() >= deadline) fate = is_write ? Fate::lost_answer : Fate::lost_request;
  return fate;
}

/// True: the write changed something.
bool MemoryObjectStore::apply(const Write& write) const {
  const bool there = objects_.contains(write.key);
  if (write.kind == Kind::remove) {
    objects_.erase(write.key);
    return there;
  }
  if (write.kind == Kind::create && there && faults_.exclusive) return false;
  objects_[write.key] = {.bytes = write.bytes, .modified_unix_s = clock_.unix_ns() / kNanosecondsPerSecond};
  return true;
}

Result<bool> MemoryObjectStore::do_write(Write write, Time deadline) {
  FRESHET_TRY(Interruption::check());
  const Fate fate = begin(/*is_write=*/true, deadline);
  if (fate == Fate::busy) return fail(too_busy());
  if (fate == Fate::lost_request) return fail(lost());
  const MutexLock lock(mutex_);
  if (fate == Fate::late) {
    late_.push_back({.at_call = calls_ + 1 + draw(faults_.calls_late_max), .write = std::move(write)});
    return fail(lost());
  }
  const bool changed = apply(write);
  if (fate == Fate::twice) {
    late_.push_back({.at_call = calls_ + 1 + draw(faults_.calls_late_max), .write = std::move(write)});
  }
  if (fate == Fate::lost_answer) return fail(lost());
  return changed;
}

Creation MemoryObjectStore::create(std::string_view key, Bytes bytes, Time deadline,
                                   std::optional<std::uint32_t> crc32c) {
  if (Status good = check_object_key(key); !good) return refused_creation(std::move(good).error());
  if (bytes.size() > kObjectBytesMax) {
    return refused_creation(Error(Code::invalid_argument, format("create {}: it has over 64 MiB", key)));
  }
  if (crc32c && *crc32c != crc32c_of(bytes)) {
    return refused_creation(Error(Code::unavailable, format("create {}: its bytes differ from their checksum", key)));
  }
  Result<bool> made =
      do_write({.kind = Kind::create, .key = std::string(key), .bytes = text_of_bytes(bytes)}, deadline);
  if (made) return {.outcome = *made ? Created::created : Created::exists};
  // A busy store has said no; an interrupted call has sent nothing.
  const bool settled = made.error().code() != Code::timed_out;
  return {.outcome = settled ? Created::refused : Created::unsettled, .error = std::move(made).error()};
}

Status MemoryObjectStore::put(std::string_view key, Bytes bytes, Time deadline) {
  FRESHET_TRY(check_object_key(key));
  if (bytes.size() > kObjectBytesMax) return refuse(format("put {}: it has over 64 MiB", key));
  FRESHET_TRY(do_write({.kind = Kind::put, .key = std::string(key), .bytes = text_of_bytes(bytes)}, deadline));
  return {};
}

Status MemoryObjectStore::remove(std::string_view key, Time deadline) {
  FRESHET_TRY(check_object_key(key));
  FRESHET_TRY(do_write({.kind = Kind::remove, .key = std::string(key), .bytes = {}}, deadline));
  return {};
}

Result<MemoryObjectStore::Kept> MemoryObjectStore::find(std::string_view key, Time deadline) const {
  FRESHET_TRY(check_object_key(key));
  FRESHET_TRY(Interruption::check());
  const Fate fate = begin(/*is_write=*/false, deadline);
  if (fate == Fate::busy) return fail(too_busy());
  if (fate != Fate::done) return fail(lost());
  const MutexLock lock(mutex_);
  const auto found = objects_.find(key);
  if (found == objects_.end()) return fail(Code::not_found, format("there is no object {}", key));
  return found->second;
}

Result<Object> MemoryObjectStore::get(std::string_view key, std::uint64_t bytes_max, Time deadline) const {
  FRESHET_ASSIGN(Kept kept, find(key, deadline));
  if (kept.bytes.size() > bytes_max) {
    return fail(Code::out_of_space, format("object {} has {} bytes, over {}", key, kept.bytes.size(), bytes_max));
  }
  const ObjectHead head{.bytes = kept.bytes.size(),
                        .modified_unix_s = kept.modified_unix_s,
                        .crc32c = crc32c_of(bytes_of_text(kept.bytes))};
  return Object{.bytes = std::move(kept.bytes), .head = head};
}

Status MemoryObjectStore::read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const {
  FRESHET_ASSIGN(const Kept kept, find(key, deadline));
  if (offset > kept.bytes.size() || out.size() > kept.bytes.size() - offset) {
    return fail(Code::corrupt, format("object {} has {} bytes, not {}", key, kept.bytes.size(), offset + out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), kept.bytes.data() + offset, out.size());
  return {};
}

Result<ObjectHead> MemoryObjectStore::head(std::string_view key, Time deadline) const {
  FRESHET_ASSIGN(const Object object, get(key, kObjectBytesMax, deadline));
  return object.head;
}

Result<ObjectPage> MemoryObjectStore::list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                                           Time deadline) const {
  if (keys_max == 0 || keys_max > kListKeysMax) return refuse(format("list objects: ask for 1 to {}", kListKeysMax));
  FRESHET_TRY(Interruption::check());
  const Fate fate = begin(/*is_write=*/false, deadline);
  if (fate == Fate::busy) return fail(too_busy());
  if (fate != Fate::done) return fail(lost());
  const MutexLock lock(mutex_);
  ObjectPage page;
  auto next = after < prefix ? objects_.lower_bound(prefix) : objects_.upper_bound(after);
  for (; next != objects_.end() && next->first.starts_with(prefix); ++next) {
    if (page.objects.size() == keys_max) {
      page.more = true;
      break;
    }
    const Kept& kept = next->second;
    page.objects.push_back({.key = next->first, .bytes = kept.bytes.size(), .modified_unix_s = kept.modified_unix_s});
  }
  return page;
}

Result<std::int64_t> MemoryObjectStore::now_unix_s(Time deadline) const {
  const Fate fate = begin(/*is_write=*/false, deadline);
  if (fate == Fate::busy) return fail(too_busy());
  if (fate != Fate::done) return fail(lost());
  return clock_.unix_ns() / kNanosecondsPerSecond;
}

Result<SignedRequest> MemoryObjectStore::sign_get(std::string_view key, Duration life) const {
  FRESHET_TRY(check_object_key(key));
  FRESHET_TRY(check_life(life));
  return sign_ticket({.creates = false, .ends_ns = clock_.unix_ns() + life.count(), .key = key});
}

Result<SignedRequest> MemoryObjectStore::sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                                     Duration life) const {
  FRESHET_TRY(check_object_key(key));
  FRESHET_TRY(check_life(life));
  if (bytes > kObjectBytesMax) return refuse(format("sign a creation of {}: it has over 64 MiB", key));
  return sign_ticket(
      {.creates = true, .ends_ns = clock_.unix_ns() + life.count(), .bytes = bytes, .crc32c = crc32c, .key = key});
}

Status MemoryObjectStore::read(const SignedRequest& request, std::uint64_t offset, MutableBytes out,
                               Time deadline) const {
  FRESHET_ASSIGN(const MemoryTicket ticket, read_ticket(request.url));
  if (ticket.creates || clock_.unix_ns() > ticket.ends_ns) {
    return fail(Code::failed_precondition, "memory store: the signed request has ended, or is for another use");
  }
  return read(ticket.key, offset, out, deadline);
}

Creation MemoryObjectStore::create(const SignedRequest& request, Bytes bytes, Time deadline) {
  const Result<MemoryTicket> ticket = read_ticket(request.url);
  if (!ticket) return refused_creation(ticket.error());
  if (!ticket->creates || clock_.unix_ns() > ticket->ends_ns || bytes.size() != ticket->bytes ||
      crc32c_of(bytes) != ticket->crc32c) {
    return refused_creation(Error(Code::failed_precondition,
                                  "memory store: the signed request has ended, or is for another use or other bytes"));
  }
  return create(ticket->key, bytes, deadline);
}

}  // namespace freshet
