// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_store.h"

#include <time.h>

#include <system_error>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::log {
namespace {

constexpr Duration kTickEvery = std::chrono::milliseconds(50);
constexpr int kUrgentWorkers = 2;
constexpr int kWorkers = 6;

Time boot_now() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return Time(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

LogId draw_log_id() {
  const std::uint64_t high = random_u64(system_env());
  return {.high = high, .low = random_u64(system_env())};
}

LogStore::Options with_ids(LogStore::Options options) {
  options.log.self.id = draw_log_id();
  options.log.first_token = draw_log_id();
  return options;
}

bool is_of_record(const Call& call) {
  if (const auto* create = std::get_if<call::Create>(&call.what)) return create->key.starts_with(kRecordPrefix);
  const auto* get = std::get_if<call::Get>(&call.what);
  return get != nullptr && get->key.starts_with(kRecordPrefix);
}

}  // namespace

LogStore::LogStore(std::shared_ptr<StoreCaller> store, Options options)
    : store_(std::move(store)), options_(with_ids(std::move(options))), machine_(options_.log, boot_now()) {}

Result<std::unique_ptr<LogStore>> LogStore::open(std::shared_ptr<StoreCaller> store, Options options) {
  std::unique_ptr<LogStore> opened(new LogStore(std::move(store), std::move(options)));
  try {
    opened->start_threads();
  } catch (const std::system_error& error) {  // The host has no more.
    return fail(Code::unavailable, format("open the repository's log: start a thread: {}", error.what()));
  }
  FRESHET_TRY(opened->look(deadline_in(opened->options_.open_within)));
  return opened;
}

void LogStore::start_threads() {
  for (int i = 0; i < kWorkers; ++i) threads_.emplace_back([this, i] { work(i < kUrgentWorkers); });
  threads_.emplace_back([this] { tick(); });
}

LogStore::~LogStore() {
  {
    const MutexLock lock(mutex_);
    machine_.give_up(boot_now());
    pump();
    const Time deadline = deadline_in(options_.close_within);
    while (machine_.role() == Role::ending && !machine_.error()) {
      if (!changed_.wait_until(mutex_, deadline)) break;
    }
    closing_ = true;
    to_do_.notify_all();
    urgent_to_do_.notify_all();
    closed_.notify_all();
  }
  store_->stop();
  for (std::thread& thread : threads_) thread.join();
}

bool LogStore::take_call(bool urgent_only, Call& call) {
  std::deque<Call>& from = !urgent_.empty() || urgent_only ? urgent_ : other_;
  if (from.empty()) return false;
  call = std::move(from.front());
  from.pop_front();
  return true;
}

// Some workers are for records only, so that a large part of a snapshot never delays a look.
void LogStore::work(bool urgent_only) {
  while (true) {
    Call call;
    {
      const MutexLock lock(mutex_);
      while (!closing_ && !take_call(urgent_only, call)) (urgent_only ? urgent_to_do_ : to_do_).wait(mutex_);
      if (closing_) return;
    }
    Answer answer = store_->run(call);
    const MutexLock lock(mutex_);
    machine_.on_answer(call.ticket, std::move(answer), boot_now());
    pump();
  }
}

void LogStore::tick() {
  const MutexLock lock(mutex_);
  while (!closing_) {
    machine_.on_tick(boot_now());
    pump();
    closed_.wait_until(mutex_, deadline_in(kTickEvery));
  }
}

void LogStore::pump() {
  has_owned_ = has_owned_ || machine_.role() == Role::owns;
  for (Call& call : machine_.take_calls()) {
    const bool is_urgent = is_of_record(call);
    (is_urgent ? urgent_ : other_).push_back(std::move(call));
    // A worker that is not woken is at work, and looks for more afterwards.
    to_do_.notify_one();
    if (is_urgent) urgent_to_do_.notify_one();
  }
  for (BatchEnd& end : machine_.take_ends()) {
    const auto waits = batches_.find(end.batch);
    if (waits != batches_.end()) waits->second = std::move(end);
  }
  changed_.notify_all();
}

Role LogStore::role() const {
  const MutexLock lock(mutex_);
  return machine_.role();
}

std::optional<LogMember> LogStore::owner() const {
  const MutexLock lock(mutex_);
  return machine_.state().owner();
}

bool LogStore::is_empty() const {
  const MutexLock lock(mutex_);
  return machine_.state().position() == 0;
}

Result<bool> LogStore::wait(Time deadline) {
  const Time look = Interruption::next_look(deadline);
  const bool is_over = !changed_.wait_until(mutex_, look) && look == deadline;
  if (!Interruption::is_possible()) return !is_over;
  // Who is asked may wait for a lock of Python's, whose holder may wait for this one.
  mutex_.unlock();
  const Status wanted = Interruption::check();
  mutex_.lock();
  if (!wanted) return fail(wanted.error());
  return !is_over;
}

Status LogStore::claim(Time deadline) {
  const MutexLock lock(mutex_);
  machine_.claim(boot_now());
  pump();
  while (machine_.role() == Role::claims) {
    if (machine_.error()) return fail(*machine_.error());
    if (const Error* refusal = machine_.refusal(); refusal && refusal->code() == Code::failed_precondition) {
      return fail(refusal->code(), "this process cannot own the repository: " + refusal->message());
    }
    FRESHET_ASSIGN(const bool in_time, wait(deadline));
    // A person must act first: who may only read shall not wait.
    const std::optional<Error> trouble = machine_.trouble();
    if (trouble && trouble->code() == Code::failed_precondition) {
      return fail(trouble->code(), "this process cannot own the repository: " + trouble->message());
    }
    if (!in_time) {
      return fail(Code::timed_out, machine_.trouble() ? machine_.trouble()->message()
                                                      : "the claim of the repository's log is not settled yet");
    }
  }
  if (machine_.role() == Role::owns) return {};
  if (machine_.error()) return fail(*machine_.error());
  return fail(machine_.claim_error().value_or(Error(Code::unavailable, "this process does not own the repository")));
}

Status LogStore::apply(Batch batch, Time deadline) {
  const MutexLock lock(mutex_);
  FRESHET_TRY(check_not_replaced());
  FRESHET_ASSIGN(const std::uint64_t number, machine_.append(std::move(batch), boot_now()));
  // The machine ends each batch by a time of its own. So the caller's wait ends, and the line goes with it.
  const auto waits = batches_.emplace(number, std::nullopt).first;
  pump();
  Result<bool> in_time = true;
  while (!waits->second && in_time && *in_time && !machine_.error()) in_time = wait(deadline);
  const std::optional<BatchEnd> end = std::move(waits->second);
  batches_.erase(waits);
  if (end && end->outcome == BatchEnd::Outcome::applied) return {};
  const Error error = end                ? end->error
                      : machine_.error() ? *machine_.error()
                                         : Error(Code::timed_out, "the object store did not answer");
  if (end && end->outcome == BatchEnd::Outcome::not_applied) {
    // timed_out is kept for what may be applied.
    return fail(error.code() == Code::timed_out ? Code::unavailable : error.code(),
                "the change was not stored: " + error.message());
  }
  const bool is_interrupted = !end && !machine_.error() && !in_time;
  return fail(is_interrupted ? Code::cancelled : Code::timed_out,
              "the change may be stored, or may be stored later: " +
                  (is_interrupted ? in_time.error().message() : error.message()));
}

Status LogStore::settle(Time deadline) {
  const MutexLock lock(mutex_);
  while (machine_.role() == Role::owns && !(machine_.is_settled() && machine_.may_answer(boot_now()))) {
    if (machine_.error()) return fail(*machine_.error());
    FRESHET_ASSIGN(const bool in_time, wait(deadline));
    if (!in_time) {
      return fail(Code::timed_out,
                  machine_.trouble() ? machine_.trouble()->message() : "the object store did not answer");
    }
  }
  if (machine_.role() == Role::owns) return {};
  return fail(Code::unavailable, "another process took the repository over");
}

Status LogStore::check_not_replaced() const {
  const bool owned = machine_.role() == Role::owns || machine_.role() == Role::ending;
  if (owned || !has_owned_) return {};
  const auto& owner = machine_.state().owner();
  return fail(Code::unavailable,
              format("this process owns the repository no more: {} took it over; open it again",
                     !owner || owner->address.empty() ? "another process" : "the process at " + owner->address));
}

Status LogStore::may_read() const {
  if (machine_.error()) return fail(*machine_.error());
  FRESHET_TRY(check_not_replaced());
  const bool owned = machine_.role() == Role::owns || machine_.role() == Role::ending;
  if (!owned || machine_.may_answer(boot_now())) return {};
  return fail(Code::unavailable,
              format("the object store has not answered for {} s: another process may own the repository by now{}",
                     options_.log.answers / std::chrono::duration<double>(1),
                     machine_.trouble() ? ": " + machine_.trouble()->message() : ""));
}

Result<std::optional<Value>> LogStore::get(std::string_view key) const {
  const MutexLock lock(mutex_);
  FRESHET_TRY(may_read());
  const auto found = machine_.state().values().find(key);
  if (found == machine_.state().values().end()) return std::nullopt;
  return found->second;
}

Status LogStore::check_current() const {
  const MutexLock lock(mutex_);
  return may_read();
}

std::optional<Error> LogStore::error() const {
  const MutexLock lock(mutex_);
  return machine_.error();
}

Status LogStore::scan(std::string_view prefix,
                      const std::function<bool(std::string_view key, const Value& value)>& each) const {
  std::vector<std::pair<std::string, Value>> found;
  {
    const MutexLock lock(mutex_);
    FRESHET_TRY(may_read());
    const LogState::Values& values = machine_.state().values();
    for (auto at = values.lower_bound(prefix); at != values.end() && at->first.starts_with(prefix); ++at) {
      found.emplace_back(*at);
    }
  }
  for (const auto& [key, value] : found) {
    if (!each(key, value)) break;
  }
  return {};
}

Status LogStore::look(Time deadline) {
  const MutexLock lock(mutex_);
  const Time begun = boot_now();
  machine_.look(begun);
  pump();
  while (!machine_.end_seen() || *machine_.end_seen() < begun) {
    if (machine_.error()) return fail(*machine_.error());
    FRESHET_ASSIGN(const bool in_time, wait(deadline));
    if (!in_time) {
      return fail(machine_.trouble().value_or(Error(Code::timed_out, "the object store did not answer")));
    }
  }
  return {};
}

Result<ObjectName> LogStore::draw_object() {
  const std::uint64_t draw = random_u64(system_env());
  const MutexLock lock(mutex_);
  FRESHET_TRY(check_not_replaced());
  if (machine_.role() != Role::owns) {
    return fail(Code::failed_precondition, "this process does not own the repository's log: it cannot upload");
  }
  return ObjectName{.token = machine_.own_token(), .draw = draw};
}

Result<std::vector<ObjectName>> LogStore::draw_objects(std::size_t count) {
  if (count > kDrawnMax) return fail(Code::invalid_argument, format("name at most {} objects at once", kDrawnMax));
  FRESHET_ASSIGN(ObjectName name, draw_object());
  name.draw &= ~std::uint64_t{kDrawnMax - 1};
  std::vector<ObjectName> names;
  for (; names.size() < count; ++name.draw) names.push_back(name);
  return names;
}

bool LogStore::may_name(const ObjectName& object) const {
  const MutexLock lock(mutex_);
  const LogState& state = machine_.state();
  return state.tokens().contains(object.token) && !state.condemned().contains(object);
}

Status LogStore::sweep(Time deadline) {
  const MutexLock lock(mutex_);
  if (machine_.role() != Role::owns) {
    return fail(Code::failed_precondition, "this process does not own the repository's log: it cannot sweep");
  }
  machine_.sweep();
  while (machine_.role() == Role::owns && machine_.is_sweeping() && !machine_.error()) {
    FRESHET_ASSIGN(const bool in_time, wait(deadline));
    if (!in_time) break;
  }
  return {};
}

}  // namespace freshet::log
