// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/pool.h"

#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "core/base/env.h"
#include "core/base/format.h"
#include "repo/records/records.h"

namespace freshet::rados {
namespace {

constexpr const char* kFence = "fence";
constexpr const char* kLock = "owner";
constexpr int kLockSeconds = 15;
constexpr int kFenceTries = 3;
constexpr std::chrono::seconds kRenewEvery{4};
/// Every wait for the cluster ends: seconds.
constexpr const char* kConnectTimeout = "10";
constexpr const char* kOperationTimeout = "30";
constexpr std::uint64_t kPageEntries = 4096;
constexpr std::uint64_t kInFlightBytes = std::uint64_t{64} << 20;
constexpr std::size_t kInFlight = 32;

/// Keys of tables begin where C strings may end: zero bytes are written as 01 01 and ones as 01 02, which keeps the
/// order, and what starts with what.
std::string escaped(std::string_view key) {
  std::string text;
  text.reserve(key.size() + 8);
  for (const char c : key) {
    if (c == '\0' || c == '\1') {
      text.push_back('\1');
      text.push_back(c == '\0' ? '\1' : '\2');
    } else {
      text.push_back(c);
    }
  }
  return text;
}

Result<std::string> plain(std::string_view text) {
  std::string key;
  key.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\1') {
      key.push_back(text[i]);
    } else if (++i < text.size() && (text[i] == '\1' || text[i] == '\2')) {
      key.push_back(text[i] == '\1' ? '\0' : '\1');
    } else {
      return fail(Code::corrupt, "a table of the repository has a key that Freshet did not write");
    }
  }
  return key;
}

std::string random_text() { return format("{:016x}", random_u64(system_env())); }

struct WriteOp {
  explicit WriteOp(const Library& library) : rados(library), op(library.rados_create_write_op()) {}
  ~WriteOp() { rados.rados_release_write_op(op); }
  WriteOp(const WriteOp&) = delete;
  WriteOp& operator=(const WriteOp&) = delete;
  const Library& rados;
  const rados_write_op_t op;
};

struct ReadOp {
  explicit ReadOp(const Library& library) : rados(library), op(library.rados_create_read_op()) {}
  ~ReadOp() { rados.rados_release_read_op(op); }
  ReadOp(const ReadOp&) = delete;
  ReadOp& operator=(const ReadOp&) = delete;
  const Library& rados;
  const rados_read_op_t op;
};

struct Iterator {
  explicit Iterator(const Library& library) : rados(library) {}
  ~Iterator() {
    if (at != nullptr) rados.rados_omap_get_end(at);
  }
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;
  /// The next entry, as it is stored; nothing at the end.
  std::optional<std::pair<std::string_view, std::string_view>> next() {
    char* key = nullptr;
    char* value = nullptr;
    std::size_t key_bytes = 0;
    std::size_t value_bytes = 0;
    if (rados.rados_omap_get_next2(at, &key, &value, &key_bytes, &value_bytes) != 0 || key == nullptr) return {};
    return std::pair(std::string_view(key, key_bytes), std::string_view(value, value_bytes));
  }
  const Library& rados;
  rados_omap_iter_t at = nullptr;
};

/// Texts as the arrays that librados takes.
struct Texts {
  void add(std::string_view text) {
    pointers.push_back(text.data());
    sizes.push_back(text.size());
  }
  std::vector<const char*> pointers;
  std::vector<std::size_t> sizes;
};

}  // namespace

std::string Pool::context(std::string_view what) const {
  return format("Ceph pool {}, repository {}: {}", options_.pool, options_.repository, what);
}

Result<std::unique_ptr<Pool>> Pool::open(const RadosOptions& options) {
  FRESHET_ASSIGN(const Library* const loaded, library());
  std::unique_ptr<Pool> pool(new Pool(*loaded, options));
  FRESHET_TRY(pool->connect());
  if (options.read_only || !options.create) FRESHET_TRY(pool->look());
  FRESHET_TRY(pool->refuse_other_format());
  if (!options.read_only) FRESHET_TRY(pool->own());
  return pool;
}

Pool::~Pool() {
  if (renewer_.joinable()) {
    {
      const MutexLock lock(renew_mutex_);
      closing_ = true;
    }
    renew_wake_.notify_all();
    renewer_.join();
  }
  if (owns_) rados_.rados_unlock(io_, kRecords, kLock, cookie_.c_str());
  if (io_ != nullptr) rados_.rados_ioctx_destroy(io_);
  if (cluster_ != nullptr) rados_.rados_shutdown(cluster_);
}

Status Pool::connect() {
  const auto check = [&](int answer, std::string_view what) -> Status {
    if (answer < 0) return fail(error_from(answer, context(what)));
    return {};
  };
  FRESHET_TRY(check(rados_.rados_create(&cluster_, options_.user.empty() ? nullptr : options_.user.c_str()), "begin"));
  const char* const file = options_.conf_file.empty() ? nullptr : options_.conf_file.c_str();
  const std::string reading =
      file != nullptr ? "read " + options_.conf_file : std::string("read ceph.conf (or the file that CEPH_CONF names)");
  FRESHET_TRY(check(rados_.rados_conf_read_file(cluster_, file), reading));
  FRESHET_TRY(check(rados_.rados_conf_parse_env(cluster_, nullptr), "read CEPH_ARGS"));
  for (const char* option : {"client_mount_timeout", "rados_mon_op_timeout"}) {
    FRESHET_TRY(check(rados_.rados_conf_set(cluster_, option, kConnectTimeout), option));
  }
  FRESHET_TRY(check(rados_.rados_conf_set(cluster_, "rados_osd_op_timeout", kOperationTimeout), "set a timeout"));
  FRESHET_TRY(check(rados_.rados_connect(cluster_), "connect"));
  FRESHET_TRY(check(rados_.rados_ioctx_create(cluster_, options_.pool.c_str(), &io_), "open the pool"));
  rados_.rados_ioctx_set_namespace(io_, options_.repository.c_str());
  return {};
}

Result<std::string> Pool::owner_of_lock() const {
  int exclusive = 0;
  std::array<char, 256> tag{};
  std::array<char, 512> clients{};
  std::array<char, 512> cookies{};
  std::array<char, 512> addresses{};
  std::size_t tag_bytes = tag.size();
  std::size_t clients_bytes = clients.size();
  std::size_t cookies_bytes = cookies.size();
  std::size_t addresses_bytes = addresses.size();
  const auto count =
      rados_.rados_list_lockers(io_, kRecords, kLock, &exclusive, tag.data(), &tag_bytes, clients.data(),
                                &clients_bytes, cookies.data(), &cookies_bytes, addresses.data(), &addresses_bytes);
  if (count < 0) return fail(error_from(static_cast<int>(count), context("ask who owns it")));
  if (count == 0) return std::string("somebody");
  addresses.back() = '\0';
  return std::string(addresses.data());
}

Status Pool::look() const {
  std::array<char, 64> fence{};
  const int answer = rados_.rados_getxattr(io_, kRecords, kFence, fence.data(), fence.size());
  if (answer == -ENOENT || answer == -ENODATA) return fail(Code::not_found, context("there is no repository"));
  if (answer < 0) return fail(error_from(answer, context("look for it")));
  return {};
}

// Before anything is written, the claim too.
Status Pool::refuse_other_format() const {
  const Result<std::string> stored = get(kRecords, kFormatKey);
  if (!stored && stored.error().code() == Code::not_found) return {};
  if (!stored) return fail(stored.error());
  Status readable = check_format_number(*stored);
  if (readable || readable.error().code() != Code::unsupported) return {};
  return fail(Code::unsupported, context(readable.error().message()));
}

Status Pool::own() {
  cookie_ = random_text();
  timeval duration{.tv_sec = kLockSeconds, .tv_usec = 0};
  const int answer = rados_.rados_lock_exclusive(io_, kRecords, kLock, cookie_.c_str(), "Freshet", &duration, 0);
  if (answer == -EBUSY || answer == -EEXIST) {
    const std::string owner = owner_of_lock().value_or("somebody");
    return fail(
        Code::unavailable,
        context(format("{} owns it; if the owner was killed, the repository is free after {} s", owner, kLockSeconds)));
  }
  if (answer < 0) return fail(error_from(answer, context("own it")));
  owns_ = true;
  FRESHET_TRY(take_over());
  try {
    renewer_ = std::thread([this] { renew(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, context(format("start a thread: {}", error.what())));
  }
  return {};
}

void Pool::renew() {
  for (;;) {
    {
      const MutexLock lock(renew_mutex_);
      const auto next = std::chrono::steady_clock::now() + kRenewEvery;
      while (!closing_ && renew_wake_.wait_until(renew_mutex_, next)) continue;
      if (closing_) return;
    }
    timeval duration{.tv_sec = kLockSeconds, .tv_usec = 0};
    // A renewal that fails is tried again; should somebody else own it by then, the fence keeps this process out.
    static_cast<void>(rados_.rados_lock_exclusive(io_, kRecords, kLock, cookie_.c_str(), "Freshet", &duration,
                                                  LIBRADOS_LOCK_FLAG_MAY_RENEW));
  }
}

Status Pool::set_fence(const char* table, const std::optional<std::string>& before, const std::string& token) {
  const WriteOp write(rados_);
  if (before) {
    rados_.rados_write_op_cmpxattr(write.op, kFence, LIBRADOS_CMPXATTR_OP_EQ, before->data(), before->size());
  }
  rados_.rados_write_op_setxattr(write.op, kFence, token.data(), token.size());
  const int answer = rados_.rados_write_op_operate(write.op, io_, table, nullptr, 0);
  if (answer < 0) return fail(error_from(answer, context("take it over")));
  return {};
}

Status Pool::take_over() {
  const MutexLock lock(token_mutex_);
  for (const char* const table : {kRecords, kHeads}) {
    const std::string token = new_token();
    FRESHET_TRY(set_fence(table, std::nullopt, token));
    token_of(table) = token;
  }
  return {};
}

Status Pool::fence() {
  const MutexLock lock(token_mutex_);
  FRESHET_TRY(move_fence(kRecords, records_token_));
  return move_fence(kHeads, heads_token_);
}

/// A token of this ownership: nobody else makes one that begins with its cookie.
std::string Pool::new_token() const { return cookie_ + random_text(); }

/// If the answer is lost, the token may have been changed, or the cluster may still change it. So a token in the pool
/// that begins with this ownership's cookie is its own: it is taken for the old token, and changed again.
Status Pool::move_fence(const char* table, std::string& token) {
  for (int tries = 1;; ++tries) {
    const std::string next = new_token();
    Status moved = set_fence(table, token, next);
    if (moved) {
      token = next;
      return {};
    }
    std::array<char, 64> bytes{};
    const int size = rados_.rados_getxattr(io_, table, kFence, bytes.data(), bytes.size());
    if (size < 0) return fail(error_from(size, context("take it over")));
    const std::string there(bytes.data(), static_cast<std::size_t>(size));
    if (there == token || !there.starts_with(cookie_) || tries == kFenceTries) return moved;
    token = there;
    if (there == next) return {};
  }
}

Status Pool::change(const char* table, const TableChange& change) {
  if (change.empty()) return {};
  Texts keys;
  Texts values;
  std::vector<std::string> kept;
  kept.reserve(change.set.size() + change.remove.size());
  for (const auto& [key, value] : change.set) {
    keys.add(kept.emplace_back(escaped(key)));
    values.add(value);
  }
  Texts removed;
  for (const std::string& key : change.remove) removed.add(kept.emplace_back(escaped(key)));
  std::string token;
  {
    const MutexLock lock(token_mutex_);
    token = token_of(table);
  }
  const WriteOp write(rados_);
  rados_.rados_write_op_cmpxattr(write.op, kFence, LIBRADOS_CMPXATTR_OP_EQ, token.data(), token.size());
  if (!change.set.empty()) {
    rados_.rados_write_op_omap_set2(write.op, keys.pointers.data(), values.pointers.data(), keys.sizes.data(),
                                    values.sizes.data(), keys.pointers.size());
  }
  if (!change.remove.empty()) {
    rados_.rados_write_op_omap_rm_keys2(write.op, removed.pointers.data(), removed.sizes.data(),
                                        removed.pointers.size());
  }
  const int answer = rados_.rados_write_op_operate(write.op, io_, table, nullptr, 0);
  if (answer < 0) return fail(error_from(answer, context(format("write to {}", table))));
  return {};
}

Status Pool::scan(const char* table, std::string_view prefix,
                  const std::function<bool(std::string_view, std::string_view)>& each) const {
  const std::string filter = escaped(prefix);
  std::string after;
  for (unsigned char more = 1; more != 0;) {
    const ReadOp read(rados_);
    Iterator entries(rados_);
    int status = 0;
    rados_.rados_read_op_omap_get_vals2(read.op, after.c_str(), filter.c_str(), kPageEntries, &entries.at, &more,
                                        &status);
    const int answer = rados_.rados_read_op_operate(read.op, io_, table, 0);
    if (answer == -ENOENT) return {};
    if (answer < 0 || status < 0) {
      return fail(error_from(answer < 0 ? answer : status, context(format("read {}", table))));
    }
    bool any = false;
    while (const auto entry = entries.next()) {
      any = true;
      after = entry->first;
      FRESHET_ASSIGN(const std::string key, plain(entry->first));
      if (!each(key, entry->second)) return {};
    }
    if (!any) return {};
  }
  return {};
}

Result<std::string> Pool::get(const char* table, std::string_view key) const {
  const std::string wanted = escaped(key);
  const char* const pointer = wanted.data();
  const std::size_t bytes = wanted.size();
  const ReadOp read(rados_);
  Iterator entries(rados_);
  int status = 0;
  rados_.rados_read_op_omap_get_vals_by_keys2(read.op, &pointer, 1, &bytes, &entries.at, &status);
  const int answer = rados_.rados_read_op_operate(read.op, io_, table, 0);
  if (answer < 0 && answer != -ENOENT) return fail(error_from(answer, context(format("read {}", table))));
  const auto entry = answer == -ENOENT || status < 0 ? std::nullopt : entries.next();
  if (!entry) return fail(Code::not_found, "no such record");
  return std::string(entry->second);
}

Result<std::vector<std::string>> Pool::objects() const {
  rados_list_ctx_t list = nullptr;
  if (const int answer = rados_.rados_nobjects_list_open(io_, &list); answer < 0) {
    return fail(error_from(answer, context("list it")));
  }
  std::vector<std::string> names;
  const char* name = nullptr;
  std::size_t bytes = 0;
  int answer = 0;
  while ((answer = rados_.rados_nobjects_list_next2(list, &name, nullptr, nullptr, &bytes, nullptr, nullptr)) == 0) {
    const std::string_view object(name, bytes);
    if (object != kRecords && object != kHeads) names.emplace_back(object);
  }
  rados_.rados_nobjects_list_close(list);
  if (answer != -ENOENT) return fail(error_from(answer, context("list it")));
  return names;
}

Status Pool::remove(const std::string& object) {
  const int answer = rados_.rados_remove(io_, object.c_str());
  if (answer < 0 && answer != -ENOENT) return fail(error_from(answer, context("remove " + object)));
  return {};
}

Result<rados_completion_t> Pool::Flight::room_for(std::uint64_t bytes) {
  while (!under_way_.empty() && (under_way_.size() >= kInFlight || bytes_ + bytes > kInFlightBytes)) settle_first();
  if (!status_) return fail(status_.error());
  rados_completion_t completion = nullptr;
  if (pool_.rados_.rados_aio_create_completion2(nullptr, nullptr, &completion) < 0) {
    return fail(Code::out_of_space, pool_.context("no memory for a request"));
  }
  return completion;
}

Status Pool::Flight::write(const std::string& object, Bytes bytes) {
  FRESHET_ASSIGN(const rados_completion_t completion, room_for(bytes.size()));
  const int answer = pool_.rados_.rados_aio_write_full(pool_.io_, object.c_str(), completion,
                                                       reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (answer < 0) {
    pool_.rados_.rados_aio_release(completion);
    return fail(error_from(answer, pool_.context("write " + object)));
  }
  under_way_.push_back({.completion = completion, .object = object, .bytes = bytes.size()});
  bytes_ += bytes.size();
  return {};
}

Status Pool::Flight::read(const std::string& object, std::uint64_t offset, MutableBytes out) {
  FRESHET_ASSIGN(const rados_completion_t completion, room_for(out.size()));
  const int answer = pool_.rados_.rados_aio_read(pool_.io_, object.c_str(), completion,
                                                 reinterpret_cast<char*>(out.data()), out.size(), offset);
  if (answer < 0) {
    pool_.rados_.rados_aio_release(completion);
    return fail(error_from(answer, pool_.context("read " + object)));
  }
  under_way_.push_back({.completion = completion, .object = object, .bytes = out.size(), .is_read = true});
  bytes_ += out.size();
  return {};
}

void Pool::Flight::settle_first() {
  const One one = under_way_.front();
  under_way_.erase(under_way_.begin());
  pool_.rados_.rados_aio_wait_for_complete(one.completion);
  const int answer = pool_.rados_.rados_aio_get_return_value(one.completion);
  pool_.rados_.rados_aio_release(one.completion);
  bytes_ -= one.bytes;
  if (!status_) return;
  if (answer < 0) {
    status_ = fail(error_from(answer, pool_.context((one.is_read ? "read " : "write ") + one.object)));
  } else if (one.is_read && static_cast<std::uint64_t>(answer) != one.bytes) {
    status_ = fail(Code::corrupt, pool_.context(one.object + " is too short"));
  }
}

Status Pool::Flight::wait() {
  while (!under_way_.empty()) settle_first();
  return status_;
}

}  // namespace freshet::rados
