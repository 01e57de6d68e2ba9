// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/rados_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/rados/clock_lock.h"
#include "repo/rados/cluster.h"

namespace freshet {
namespace rados {
namespace {

// Objects besides those of keys: no key has a colon.
constexpr std::string_view kIndex = "index:";
constexpr std::string_view kClock = "clock:";
/// Ceph warns of an object with more than 200,000 entries.
constexpr std::size_t kIndexObjects = 16;
/// The first versions of Freshet kept their records in this object.
constexpr const char* kOldRecords = "records";
constexpr Duration kFirstLook = std::chrono::seconds(8);
/// A record of the log mostly has fewer bytes.
constexpr std::size_t kFirstRead = 64 << 10;
constexpr std::size_t kTransfersMax = 8;
constexpr std::string_view kLengthHeader = "content-length";
constexpr std::string_view kChecksumHeader = "x-freshet-crc32c";

std::string index_of(std::string_view key) {
  return format("{}{}", kIndex, crc32c_of(bytes_of(key.data(), key.size())) % kIndexObjects);
}

Status check_rados_life(Duration life) {
  if (life >= std::chrono::seconds(1) && life <= std::chrono::hours(1)) return {};
  return fail(Code::invalid_argument, "sign a request: give it a life of 1 s to 1 h");
}

Creation refusal(Error error) { return {.outcome = Created::refused, .error = std::move(error)}; }

/// Whether the cluster will not do what it has answered this to.
bool is_refusal(int answer) {
  for (const int number : {EPERM, EACCES, EROFS, ENOSPC, EDQUOT, EINVAL, ENAMETOOLONG, EFBIG, EOPNOTSUPP, ENOENT}) {
    if (answer == -number) return true;
  }
  return false;
}

struct IndexEntries {
  explicit IndexEntries(const Library& library) : rados(library) {}
  ~IndexEntries() {
    if (at != nullptr) rados.rados_omap_get_end(at);
  }
  IndexEntries(const IndexEntries&) = delete;
  IndexEntries& operator=(const IndexEntries&) = delete;

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    char* key = nullptr;
    char* value = nullptr;
    std::size_t key_bytes = 0;
    std::size_t value_bytes = 0;
    while (rados.rados_omap_get_next2(at, &key, &value, &key_bytes, &value_bytes) == 0 && key != nullptr) {
      all.emplace_back(key, key_bytes);
    }
    return all;
  }

  const Library& rados;
  rados_omap_iter_t at = nullptr;
};

/// A page of one of the index's objects.
struct IndexPage {
  explicit IndexPage(const Cluster& cluster) : entries(cluster.rados()), read(cluster) {}
  IndexEntries entries;
  unsigned char more = 0;
  int status = 0;
  ReadOperation read;  ///< Ends before its results.
};

struct Look {
  explicit Look(const Cluster& cluster) : read(cluster) {
    cluster.rados().rados_read_op_stat(read.op(), &bytes, &modified, &status);
  }
  std::uint64_t bytes = 0;
  time_t modified = 0;
  int status = 0;
  ReadOperation read;
};

/// Any thread.
class Store final : public RadosStore {
 public:
  explicit Store(std::unique_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  /// The first question to the objects' daemons.
  Status refuse_older() const {
    Look look(*cluster_);
    look.read.send(kOldRecords);
    FRESHET_ASSIGN(const int answer, told(look.read, "look for a repository", deadline_in(kFirstLook)));
    if (answer == -ENOENT) return {};
    if (answer < 0) return fail(cluster_->error_of(answer, "look for a repository"));
    return fail(Code::unsupported,
                format("{}: an older version of Freshet made this repository, and this version cannot read it; export "
                       "it with that version, and name another repository here",
                       place()));
  }

  std::string_view kind() const override { return "rados"; }
  std::string place() const override { return cluster_->place(); }
  std::size_t transfers_max() const override { return kTransfersMax; }

  Creation create(std::string_view key, Bytes bytes, Time deadline, std::optional<std::uint32_t> crc32c) override {
    const std::string what = format("create {}", key);
    if (Status begun = begin(key, bytes.size(), what, deadline); !begun) return refusal(std::move(begun).error());
    if (Status noted = note(key, what, deadline); !noted) return refusal(std::move(noted).error());
    WriteOperation write(*cluster_);
    rados().rados_write_op_create(write.op(), LIBRADOS_CREATE_EXCLUSIVE, nullptr);
    // This copies the bytes. So the sum of what is there afterwards is that of the copy.
    rados().rados_write_op_write_full(write.op(), chars_of(bytes), bytes.size());
    if (crc32c && crc32c_of(bytes) != *crc32c) {
      return refusal(Error(Code::unavailable, format("{}: {}: the bytes changed meanwhile", place(), what)));
    }
    write.send(std::string(key));
    const Result<int> answer = told(write, what, deadline);
    if (!answer) return {.outcome = Created::unsettled, .error = answer.error()};
    if (*answer >= 0) return {.outcome = Created::created};
    if (*answer == -EEXIST) return {.outcome = Created::exists};
    return {.outcome = is_refusal(*answer) ? Created::refused : Created::unsettled,
            .error = cluster_->error_of(*answer, what)};
  }

  Status put(std::string_view key, Bytes bytes, Time deadline) override {
    const std::string what = format("put {}", key);
    FRESHET_TRY(begin(key, bytes.size(), what, deadline));
    FRESHET_TRY(note(key, what, deadline));
    WriteOperation write(*cluster_);
    rados().rados_write_op_write_full(write.op(), chars_of(bytes), bytes.size());
    return done(write, std::string(key), what, deadline);
  }

  Status remove(std::string_view key, Time deadline) override {
    const std::string what = format("remove {}", key);
    FRESHET_TRY(begin(key, 0, what, deadline));
    {
      WriteOperation write(*cluster_);
      rados().rados_write_op_remove(write.op());
      write.send(std::string(key));
      FRESHET_ASSIGN(const int answer, told(write, what, deadline));
      if (answer < 0 && answer != -ENOENT) return fail(cluster_->error_of(answer, what));
    }
    WriteOperation write(*cluster_);
    const char* const entry = key.data();
    const std::size_t entry_bytes = key.size();
    rados().rados_write_op_omap_rm_keys2(write.op(), &entry, &entry_bytes, 1);
    return done(write, index_of(key), what, deadline);
  }

  Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const override {
    const std::string what = format("get {}", key);
    FRESHET_TRY(begin(key, 0, what, deadline));
    Object object;
    object.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(bytes_max, kFirstRead)));
    for (;;) {
      std::size_t bytes = 0;
      int status = 0;
      Look look(*cluster_);
      rados().rados_read_op_read(look.read.op(), 0, object.bytes.size(), object.bytes.data(), &bytes, &status);
      FRESHET_TRY(done(look.read, std::string(key), what, deadline));
      if (look.bytes > bytes_max) {
        return fail(Code::out_of_space, format("{}: {}: it has more than {} bytes", place(), what, bytes_max));
      }
      const bool is_whole = look.bytes <= object.bytes.size();
      object.bytes.resize(static_cast<std::size_t>(look.bytes));
      if (!is_whole) continue;
      object.head = {.bytes = look.bytes, .modified_unix_s = look.modified, .crc32c = std::nullopt};
      return object;
    }
  }

  Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    const std::string what = format("read {}", key);
    FRESHET_TRY(begin(key, 0, what, deadline));
    std::size_t bytes = 0;
    int status = 0;
    Look look(*cluster_);
    if (!out.empty()) {
      rados().rados_read_op_read(look.read.op(), offset, out.size(), reinterpret_cast<char*>(out.data()), &bytes,
                                 &status);
    }
    FRESHET_TRY(done(look.read, std::string(key), what, deadline));
    if (bytes == out.size() && offset <= look.bytes) return {};
    return fail(Code::corrupt, format("{}: {}: the object has {} bytes, not {} from {}", place(), what, look.bytes,
                                      out.size(), offset));
  }

  Result<ObjectHead> head(std::string_view key, Time deadline) const override {
    const std::string what = format("head {}", key);
    FRESHET_TRY(begin(key, 0, what, deadline));
    Look look(*cluster_);
    FRESHET_TRY(done(look.read, std::string(key), what, deadline));
    return ObjectHead{.bytes = look.bytes, .modified_unix_s = look.modified, .crc32c = std::nullopt};
  }

  Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                          Time deadline) const override {
    if (keys_max == 0 || keys_max > kListKeysMax) {
      return fail(Code::invalid_argument, format("list objects: ask for 1 to {}", kListKeysMax));
    }
    FRESHET_TRY(check_time(deadline, "list"));
    const std::string from(after);
    const std::string filter(prefix);
    std::deque<IndexPage> pages;
    for (std::size_t i = 0; i < kIndexObjects; ++i) {
      IndexPage& page = pages.emplace_back(*cluster_);
      rados().rados_read_op_omap_get_vals2(page.read.op(), from.c_str(), filter.c_str(), keys_max, &page.entries.at,
                                           &page.more, &page.status);
      page.read.send(format("{}{}", kIndex, i));
    }
    std::vector<std::string> keys;
    std::optional<std::string> known_until;  // A page that was cut tells nothing of later keys.
    for (IndexPage& page : pages) {
      FRESHET_ASSIGN(const int answer, told(page.read, "list", deadline));
      if (answer == -ENOENT) continue;
      if (answer < 0) return fail(cluster_->error_of(answer, "list"));
      std::vector<std::string> some = page.entries.keys();
      if (page.more != 0 && !some.empty() && (!known_until || some.back() < *known_until)) known_until = some.back();
      keys.insert(keys.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    std::ranges::sort(keys);
    if (known_until) keys.erase(std::ranges::upper_bound(keys, *known_until), keys.end());
    ObjectPage page;
    page.more = known_until.has_value() || keys.size() > keys_max;
    keys.resize(std::min(keys.size(), keys_max));
    FRESHET_ASSIGN(page.objects, looked_at(std::move(keys), deadline));
    return page;
  }

  Result<std::int64_t> now_unix_s(Time deadline) const override {
    const std::string what = "ask the cluster for the time";
    FRESHET_TRY(check_time(deadline, what));
    const std::string object(kClock);
    const std::string wanted = clock_lock_request(cookie_);
    WriteOperation lock(*cluster_);
    rados().rados_write_op_exec(lock.op(), "lock", "lock", wanted.data(), wanted.size(), nullptr);
    FRESHET_TRY(done(lock, object, what, deadline));
    const std::string question = clock_lock_question();
    std::string answer(64 << 10, '\0');
    std::size_t bytes = 0;
    int status = 0;
    ReadOperation read(*cluster_);
    rados().rados_read_op_exec_user_buf(read.op(), "lock", "get_info", question.data(), question.size(), answer.data(),
                                        answer.size(), &bytes, &status);
    FRESHET_TRY(done(read, object, what, deadline));
    answer.resize(bytes);
    const std::optional<std::int64_t> unix_s = time_of_clock_lock(answer);
    if (!unix_s) return fail(Code::unavailable, format("{}: {}: the cluster's answer has no time", place(), what));
    return *unix_s;
  }

  Result<SignedRequest> sign_get(std::string_view key, Duration life) const override {
    FRESHET_TRY(check_object_key(key));
    FRESHET_TRY(check_rados_life(life));
    return SignedRequest{.url = url_of(key), .headers = {}};
  }

  Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                    Duration life) const override {
    FRESHET_TRY(check_object_key(key));
    FRESHET_TRY(check_rados_life(life));
    return SignedRequest{.url = url_of(key),
                         .headers = {{std::string(kLengthHeader), format("{}", bytes)},
                                     {std::string(kChecksumHeader), format("{:08x}", crc32c)}}};
  }

  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    FRESHET_ASSIGN(const std::string_view key, key_of(request));
    if (!request.headers.empty()) {
      return fail(Code::failed_precondition, format("{}: read {}: the request is for a creation", place(), key));
    }
    return read(key, offset, out, deadline);
  }

  Creation create(const SignedRequest& request, Bytes bytes, Time deadline) override {
    const Result<std::string_view> key = key_of(request);
    if (!key) return refusal(key.error());
    const std::uint32_t crc32c = crc32c_of(bytes);
    const Result<SignedRequest> own = sign_create(*key, bytes.size(), crc32c, std::chrono::seconds(1));
    if (!own || own->headers != request.headers) {
      return refusal(Error(Code::failed_precondition,
                           format("{}: create {}: the request is for other bytes or another use", place(), *key)));
    }
    return create(*key, bytes, deadline, crc32c);
  }

 private:
  const Library& rados() const { return cluster_->rados(); }
  static const char* chars_of(Bytes bytes) { return reinterpret_cast<const char*>(bytes.data()); }

  std::string url_of(std::string_view key) const { return format("{}/{}", place(), key); }
  Result<std::string_view> key_of(const SignedRequest& request) const {
    std::string_view key = request.url;
    const std::string start = place() + "/";
    if (!key.starts_with(start)) {
      return fail(Code::invalid_argument, format("{}: this is no request of {}", shown(request.url, 64), place()));
    }
    key.remove_prefix(start.size());
    FRESHET_TRY(check_object_key(key));
    return key;
  }

  Status check_time(Time deadline, std::string_view what) const {
    if (system_clock().now() < deadline) return {};
    return fail(Code::timed_out, format("{}: {}: no time is left", place(), what));
  }
  Status begin(std::string_view key, std::size_t bytes, std::string_view what, Time deadline) const {
    FRESHET_TRY(check_object_key(key));
    if (bytes > kObjectBytesMax) return fail(Code::invalid_argument, format("{}: it has over 64 MiB", what));
    return check_time(deadline, what);
  }

  /// The cluster's answer to what was sent.
  Result<int> told(Operation& operation, std::string_view what, Time deadline) const {
    Result<int> answer = operation.answer(deadline);
    if (!answer) return fail(std::move(answer).error().with_context(format("{}: {}", place(), what)));
    return answer;
  }
  template <typename SomeOperation>
  Status done(SomeOperation& operation, const std::string& object, std::string_view what, Time deadline) const {
    operation.send(object);
    FRESHET_ASSIGN(const int answer, told(operation, what, deadline));
    if (answer < 0) return fail(cluster_->error_of(answer, what));
    return {};
  }

  /// Before an object is made.
  Status note(std::string_view key, std::string_view what, Time deadline) const {
    const char* const entry = key.data();
    const std::size_t entry_bytes = key.size();
    const char* const nothing = "";
    const std::size_t no_bytes = 0;
    WriteOperation write(*cluster_);
    rados().rados_write_op_omap_set2(write.op(), &entry, &nothing, &entry_bytes, &no_bytes, 1);
    return done(write, index_of(key), what, deadline);
  }

  Result<std::vector<ListedObject>> looked_at(std::vector<std::string> keys, Time deadline) const {
    std::deque<Look> looks;
    for (const std::string& key : keys) looks.emplace_back(*cluster_).read.send(key);
    std::vector<ListedObject> objects;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Look& look = looks[i];
      FRESHET_ASSIGN(const int answer, told(look.read, "list", deadline));
      if (answer < 0 && answer != -ENOENT) return fail(cluster_->error_of(answer, "list"));
      objects.push_back({.key = std::move(keys[i]), .bytes = look.bytes, .modified_unix_s = look.modified});
    }
    return objects;
  }

  const std::unique_ptr<Cluster> cluster_;
  const std::string cookie_ = format("{:016x}", random_u64(system_env()));
};

}  // namespace
}  // namespace rados

Result<std::shared_ptr<RadosStore>> open_rados_store(const RadosAddress& address) {
  FRESHET_ASSIGN(std::unique_ptr<rados::Cluster> cluster, rados::Cluster::connect(address));
  auto store = std::make_shared<rados::Store>(std::move(cluster));
  FRESHET_TRY(store->refuse_older());
  return store;
}

}  // namespace freshet
