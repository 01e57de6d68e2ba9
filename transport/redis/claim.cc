// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/claim.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/words/number.h"
#include "transport/directory/entry_json.h"

namespace freshet::redis {
namespace {

constexpr Duration kDeadOwnerPause = std::chrono::milliseconds(100);

std::string process_of_this_host(pid_t pid) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return format("process {} on {}", pid, host[0] == '\0' ? "an unnamed host" : shown(host.data()));
}

/// Whether an owner, as it named itself, was a process of this host that has ended: the one that was killed before this
/// one was started in its place.
bool is_dead_here(const std::string& who) {
  constexpr std::string_view kBegin = "process ";
  if (!who.starts_with(kBegin)) return false;
  const std::string_view digits = std::string_view(who).substr(kBegin.size());
  const pid_t pid = number_in<pid_t>(digits.substr(0, digits.find(' '))).value_or(0);
  return pid > 0 && who == process_of_this_host(pid) && ::kill(pid, 0) != 0 && errno == ESRCH;
}

Status pause_until(Time until) {
  while (system_clock().now() < until) {
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_until(Interruption::next_look(until));
  }
  return {};
}

Error lost_error(const std::string& model, const std::string& who) {
  return Error(Code::failed_precondition, format("this process lost the name {} to {}", model, who));
}

}  // namespace

void Keeper::add(std::shared_ptr<SharedLease> lease) {
  const std::string owner = lease->owner.id;
  leases_[owner] = std::move(lease);
}

void Keeper::on_commands_ready(Time now) {
  for (const auto& [owner, shared] : leases_) {
    MutexLock lock(shared->mutex);
    shared->lease.on_reconnected(now);
  }
}

Time Keeper::on_time(Time now) {
  if (!client_.commands_ready()) return Time::max();
  Time next = Time::max();
  for (const auto& [owner, shared] : leases_) {
    Time due{};
    {
      MutexLock lock(shared->mutex);
      due = shared->lease.next_keep();
    }
    if (due <= now) {
      keep(shared, now);
    } else {
      next = std::min(next, due);
    }
  }
  return next;
}

void Keeper::keep(const std::shared_ptr<SharedLease>& shared, Time now) {
  Keep wanted;
  {
    MutexLock lock(shared->mutex);
    wanted = shared->lease.begin_keep(now);
  }
  client_.send("keep the claim of " + shared->model,
               redis::keep(client_.address().database, shared->model, shared->owner, client_.times().lease, wanted),
               [this, shared](const Result<RedisReply>& reply) { on_kept(shared, reply); });
}

void Keeper::on_kept(const std::shared_ptr<SharedLease>& shared, const Result<RedisReply>& reply) {
  const Result<Kept> kept = reply ? parse_kept(shared->model, **reply) : Result<Kept>(fail(reply.error()));
  const Time now = system_clock().now();
  std::string news;
  {
    MutexLock lock(shared->mutex);
    if (!kept) {
      shared->lease.on_failed(now);
      if (kept.error().code() != Code::unavailable) news = kept.error().message();
    } else if (shared->lease.on_kept(*kept, now)) {
      news = format("{}: the claim of {} had lapsed, and stands again", client_.address().text(), shared->model);
    }
    if (shared->lease.lost()) news = lost_error(shared->model, *shared->lease.lost()).message();
    shared->changed.notify_all();
  }
  if (news.empty()) return;
  log_line(LogLevel::warning, news);
}

Result<std::unique_ptr<Directory::Claim>> RedisClaim::take(std::shared_ptr<RedisClient> client,
                                                           std::shared_ptr<Keeper> keeper, const std::string& model) {
  Owner owner{.id = format("{:016x}{:016x}", random_u64(system_env()), random_u64(system_env())),
              .who = process_of_this_host(::getpid())};
  const RedisTimes& times = client->times();
  const Time deadline = system_clock().now() + times.patience + times.lease;
  Taken taken;
  Time asked_at{};
  while (!taken.record) {
    asked_at = system_clock().now();
    FRESHET_ASSIGN(const RedisReply reply, client->call("claim " + model, redis::take(model, owner, times.lease)));
    FRESHET_ASSIGN(taken, parse_taken(model, *reply));
    if (taken.held_by && is_dead_here(*taken.held_by) && asked_at + kDeadOwnerPause <= deadline) {
      // Its lease lapses soon: it was renewed at most one lease ago.
      FRESHET_TRY(pause_until(system_clock().now() + kDeadOwnerPause));
      continue;
    }
    if (taken.held_by) {
      return fail(Code::already_exists,
                  format("{} is already published in {}, by {}", model, client->address().text(), *taken.held_by));
    }
    if (taken.record) break;
    const Time again = system_clock().now() + std::min<Duration>(taken.young, times.lease);
    if (again > deadline) {
      return fail(Code::unavailable,
                  format("{}: the name {} is still in its quarantine", client->address().text(), model));
    }
    FRESHET_TRY(pause_until(again));
  }
  owner.fence = taken.record->fence;
  auto shared = std::make_shared<SharedLease>(
      model, owner,
      Lease({.lease = times.lease, .block = times.numbers_ahead, .taken_at = asked_at}, model, *taken.record));
  client->post([keeper = keeper.get(), shared] { keeper->add(shared); });
  return std::unique_ptr<Directory::Claim>(new RedisClaim(std::move(client), std::move(keeper), std::move(shared)));
}

RedisClaim::~RedisClaim() {
  VersionNumber reserved = 0;
  VersionNumber given = 0;
  {
    MutexLock lock(shared_->mutex);
    reserved = shared_->lease.reserved();
    given = shared_->lease.given();
  }
  // No keep may follow the release: both leave the same thread in this order.
  client_->post([keeper = keeper_.get(), owner = shared_->owner.id] { keeper->remove(owner); });
  if (client_->is_away()) return;                 // The lease lapses by itself.
  const Interruption none([] { return false; });  // A constructor that Ctrl-C ended leaves no name taken.
  static_cast<void>(
      client_->call("release " + shared_->model,
                    redis::release(client_->address().database, shared_->model, shared_->owner, reserved, given)));
}

void RedisClaim::nudge() {
  client_->post([] {});  // The thread asks everybody what is due when it wakes.
}

Status RedisClaim::wait_until_kept(std::uint64_t revision, const std::string& what) {
  nudge();
  const Time deadline = system_clock().now() + client_->times().patience;
  for (;;) {
    const Time look = Interruption::next_look(deadline);
    {
      SharedLease& shared = *shared_;
      MutexLock lock(shared.mutex);
      while (!shared.lease.lost() && !shared.lease.holds(revision)) {
        if (shared.owner_ends) return fail(Code::cancelled, format("{}: its publisher is being closed", what));
        if (!shared.changed.wait_until(shared.mutex, look)) break;
      }
      if (shared.lease.lost()) return fail(lost_error(shared.model, *shared.lease.lost()));
      if (shared.lease.holds(revision)) return {};
    }
    FRESHET_TRY(Interruption::check());
    if (look == deadline) break;
  }
  return fail(Code::unavailable, format("{}: {}: {}", client_->address().text(), what, client_->health()));
}

VersionNumber RedisClaim::last_number() const {
  MutexLock lock(shared_->mutex);
  return shared_->lease.given();
}

Result<std::uint64_t> RedisClaim::begin_incarnation(std::int64_t unix_ns) {
  std::uint64_t incarnation = 0;
  std::uint64_t revision = 0;
  {
    MutexLock lock(shared_->mutex);
    incarnation = std::max<std::uint64_t>(shared_->lease.incarnation() + 1,
                                          static_cast<std::uint64_t>(std::max<std::int64_t>(unix_ns, 0)));
    revision = shared_->lease.begin(incarnation);
  }
  FRESHET_TRY(wait_until_kept(revision, "begin an incarnation of " + shared_->model));
  return incarnation;
}

Status RedisClaim::record_number(VersionNumber number) {
  for (;;) {
    std::uint64_t revision = 0;
    {
      MutexLock lock(shared_->mutex);
      if (shared_->lease.lost()) return fail(lost_error(shared_->model, *shared_->lease.lost()));
      revision = shared_->lease.give(number);
    }
    if (revision == 0) break;
    FRESHET_TRY(wait_until_kept(revision, format("reserve number {} of {}", number, shared_->model)));
  }
  nudge();
  return {};
}

void RedisClaim::stop_waiting() {
  MutexLock lock(shared_->mutex);
  shared_->owner_ends = true;
  shared_->changed.notify_all();
}

Status RedisClaim::advertise(const Directory::Entry& entry) {
  FRESHET_TRY(check_entry(entry, Code::invalid_argument));
  std::uint64_t revision = 0;
  {
    MutexLock lock(shared_->mutex);
    revision = shared_->lease.advertise(entry_json(entry));
  }
  return wait_until_kept(revision, "advertise " + shared_->model);
}

Status RedisClaim::standing() const {
  MutexLock lock(shared_->mutex);
  if (shared_->lease.lost()) return fail(lost_error(shared_->model, *shared_->lease.lost()));
  return {};
}

CurrentVersion RedisClaim::current() const {
  MutexLock lock(shared_->mutex);
  return shared_->lease.current();
}

void RedisClaim::swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) {
  if (auto status = check_swap(shared_->model, expected, desired); !status)
    return done(fail(std::move(status).error()));
  if (auto status = standing(); !status) return done(fail(std::move(status).error()));
  client_->request(
      "make another version of " + shared_->model + " current",
      redis::swap(client_->address().database, shared_->model, shared_->owner.id, expected, desired),
      [shared = shared_, expected, desired, done = std::move(done)](const Result<RedisReply>& reply) {
        const Result<Swapped> swapped =
            reply ? parse_swapped(shared->model, **reply) : Result<Swapped>(fail(reply.error()));
        if (!swapped) return done(fail(swapped.error()));
        if (swapped->lost && swapped->lost->empty()) {
          return done(fail(Code::unavailable, format("the claim of {} is being written again", shared->model)));
        }
        if (swapped->lost) return done(fail(lost_error(shared->model, *swapped->lost)));
        {
          MutexLock lock(shared->mutex);
          shared->lease.saw(swapped->differs.value_or(desired));
        }
        if (swapped->differs) return done(fail(not_expected(shared->model, expected, *swapped->differs)));
        done(desired);
      });
}

}  // namespace freshet::redis
