// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/bucket_backend.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "repo/bucket/brought.h"
#include "repo/bucket/packer.h"
#include "repo/bucket/places.h"
#include "repo/bucket/store_caller.h"
#include "repo/object_store/exclusion.h"

namespace freshet {
namespace bucket {
namespace {

// Keys of the log's values.
constexpr char kRecordKey = 'r';  ///< + the record's key.
constexpr char kBlobKey = 'b';    ///< + the blob's key: where it lies.

constexpr Duration kOpenMax = std::chrono::seconds(30);
/// Of the races for one object, those who lose may wait in the store for seconds (SeaweedFS).
constexpr Duration kFirstObjectsMax = std::chrono::minutes(2);
constexpr Duration kFirstCallMax = std::chrono::seconds(8);
constexpr Duration kLookMax = std::chrono::seconds(30);
/// Longer than a member of the log keeps a batch.
constexpr Duration kAppendMax = std::chrono::seconds(30);
/// A longer sweep goes on behind.
constexpr Duration kSweepMax = std::chrono::seconds(30);
constexpr Duration kSettleMax = std::chrono::seconds(30);
constexpr std::string_view kProbeFolder = "probe";
/// So that a batch with them stays far below log::kBatchBytesMax.
constexpr std::size_t kChangesOfABatch = 8192;
/// A writer with more blobs has batches of its own for them: their records' batch has about as many bytes again.
constexpr std::size_t kNamesOfABatch = 8192;

/// A record is read whole. One of more bytes than this is refused, and is damage where it stands.
constexpr std::uint64_t kRecordTextMax = std::uint64_t{64} << 20;

/// The store's own errors name the place.
Error in_place(const ObjectStore& store, Error error) {
  return error.message().starts_with(store.place()) ? error : std::move(error).with_context(store.place());
}

std::string log_key(char space, std::string_view key) { return std::string(1, space).append(key); }

/// Any thread.
class BucketBackend final : public Backend {
 public:
  BucketBackend(std::shared_ptr<ObjectStore> store, std::shared_ptr<log::LogStore> log, bool read_only)
      : store_(std::move(store)), read_only_(read_only), log_(std::move(log)) {
    if (read_only_) keep_values();
  }

  std::string_view kind() const override { return "bucket"; }
  bool durable() const override { return true; }
  bool read_only() const override { return read_only_; }
  std::size_t readers_max() const override { return store_->transfers_max(); }
  Status check_current() const override { return read_only_ ? Status() : log_->check_current(); }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_TRY(check_writable());
    return std::make_unique<Writer>(*this);
  }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    return read_blob_value(key, offset, out).map([](const log::Value&) {});
  }

  /// Each object is proved as it comes. So the digest of the whole costs nothing more.
  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    FRESHET_ASSIGN(const log::Value value, read_blob_value(key, 0, out));
    std::vector<Digest> digests;
    std::uint64_t bytes = 0;
    for (const log::Place& place : value.places) {
      if (bytes != digests.size() * kDigestPartBytes || place.bytes > kDigestPartBytes) break;
      bytes += place.bytes;
      digests.push_back(place.digest);
    }
    return bytes == out.size() && !digests.empty() ? digest_of_parts(digests) : digest_of(out);
  }

  Result<std::vector<std::optional<Digest>>> read_neighbours(std::span<const WholeRead> reads) const override {
    std::vector<PlaceRead> shared;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].out.empty() || reads[i].out.size() >= kOwnObjectBytes) continue;
      const Result<log::Value> value = blob(reads[i].key);
      if (!value || value->places.size() != 1 || value->bytes() != reads[i].out.size()) continue;
      shared.push_back({.place = value->places.front(), .out = reads[i].out, .read = i});
    }
    std::vector<std::optional<Digest>> digests(reads.size());
    FRESHET_TRY(read_rows(*store_, std::move(shared), digests));
    return digests;
  }

  /// What no value names any more is condemned, and is not found here.
  Result<std::vector<SignedPart>> sign_blob(std::string_view key, Duration life) const override {
    FRESHET_ASSIGN(const log::Value value, blob(key));
    std::vector<SignedPart> parts;
    std::uint64_t left = value.bytes();
    for (const log::Place& place : value.places) {
      if (place.offset != 0 || place.bytes != std::min(left, kDigestPartBytes)) return std::vector<SignedPart>();
      left -= place.bytes;
      FRESHET_ASSIGN(SignedRequest request, store_->sign_get(log::object_key(place.object), life));
      parts.push_back({.request = std::move(request), .bytes = place.bytes});
    }
    return parts;
  }

  Result<SignedUploads> sign_uploads(std::span<const PartToBring> parts, Duration life) override {
    FRESHET_TRY(check_writable());
    FRESHET_ASSIGN(const std::vector<log::ObjectName> names, log_->draw_objects(parts.size()));
    SignedUploads made;
    for (const PartToBring& part : parts) {
      std::string key = log::object_key(names[made.uploads.size()]);
      FRESHET_ASSIGN(SignedRequest request, store_->sign_create(key, part.bytes, part.crc32c, life));
      if (made.uploads.empty()) {
        FRESHET_ASSIGN(made.probe, store_->sign_get(key, life));
      }
      made.uploads.push_back({.object = std::move(key), .request = std::move(request)});
    }
    return made;
  }

  bool takes_brought() const override { return true; }
  Result<std::vector<bool>> find_brought(std::span<const BroughtPart> parts) const override {
    return find_brought_objects(*store_, *log_, parts);
  }

  Status erase_blob(std::string_view key) override {
    FRESHET_TRY(check_writable());
    const Result<log::Value> there = blob(key);
    if (!there) return there.error().code() == Code::not_found ? Status() : Status(fail(there.error()));
    const MutexLock lock(mutex_);
    erased_.emplace(key);
    return {};
  }

  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    return scan_values(std::string_view(&kBlobKey, 1), [&](std::string_view key, const log::Value& value) {
      return is_erased(key.substr(1)) || each(key.substr(1), value.bytes());
    });
  }

  Status reclaim() override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(append({}, Split::may));
    // Uploads of writers that were killed.
    return log_->sweep(deadline_in(kSweepMax));
  }

  Status apply(const Batch& batch) override {
    FRESHET_TRY(check_writable());
    std::map<std::string_view, const std::string*> last;
    std::vector<log::Change> changes;
    for (const auto& one : batch) {
      if (const auto* put = std::get_if<Put>(&one)) {
        last[put->key] = &put->value;
      } else if (const auto* erase = std::get_if<Erase>(&one)) {
        last[erase->key] = nullptr;
      } else {
        // Of the writers, only this backend's finish without a commit.
        static_cast<Writer*>(std::get<NewBlobs>(one).writer)->give_names(changes);
      }
    }
    Packer packer(*store_, *log_, packs_);
    for (const auto& [key, value] : last) {
      if (value != nullptr && value->size() > kRecordTextMax) {
        return fail(Code::out_of_space,
                    format("a record has at most {} bytes; {} has {}", kRecordTextMax, key, value->size()));
      }
      if (value != nullptr && value->size() > log::kInlineBytesMax) {
        FRESHET_TRY(packer.add(key, bytes_of(value->data(), value->size())));  // The batch outlives the packer.
        continue;
      }
      log::Change change{.key = log_key(kRecordKey, key)};
      if (value != nullptr) change.value = log::Value{.inlined = *value, .places = {}};
      changes.push_back(std::move(change));
    }
    FRESHET_ASSIGN(Packer::Values packed, packer.finish());
    for (auto& [key, value] : packed) {
      changes.push_back({.key = log_key(kRecordKey, key), .value = std::move(value)});
    }
    return append(std::move(changes), Split::never);
  }

  Result<std::string> get(std::string_view key) const override {
    const std::string full = log_key(kRecordKey, key);
    FRESHET_ASSIGN(const std::optional<log::Value> value, value_of(full));
    if (!value) return fail(Code::not_found, "no such record");
    return text_of(full, *value);
  }

  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    Status read;
    FRESHET_TRY(scan_values(log_key(kRecordKey, prefix), [&](std::string_view key, const log::Value& value) {
      const Result<std::string> text = text_of(key, value);
      if (!text) read = fail(text.error());
      return text && each(key.substr(1), *text);
    }));
    return read;
  }

  Status recover() override {
    FRESHET_TRY(check_writable());
    return log_->settle(deadline_in(kSettleMax));
  }

  /// Objects that no value names any more, and that are not erased yet, do not count.
  Result<DiskUse> disk_use() const override {
    DiskUse use;
    FRESHET_TRY(scan_values("", [&](std::string_view key, const log::Value& value) {
      const bool is_blob = key.starts_with(kBlobKey);
      if (is_blob && is_erased(key.substr(1))) return true;
      use.bytes += key.size() + value.bytes();
      use.metadata_bytes += key.size() + (is_blob ? 0 : value.bytes());
      return true;
    }));
    return use;
  }

 private:
  class Writer final : public BlobWriter {
   public:
    explicit Writer(BucketBackend& backend)
        : backend_(backend), packer_(*backend.store_, *backend.log_, backend.packs_) {}

    Status write(std::string_view key, Bytes bytes) override {
      const Result<Digest> added = packer_.add(key, bytes);
      // Also after an error: threads still read earlier parts of the bytes.
      Status sent = packer_.wait();
      return added ? sent : Status(fail(added.error()));
    }
    Result<Digest> write_and_digest(std::string_view key, Bytes bytes) override { return packer_.add(key, bytes); }
    Status bring(std::string_view key, std::span<const BroughtPart> parts) override {
      log::Value value;
      for (const BroughtPart& part : parts) {
        const std::optional<log::ObjectName> name = log::parse_object_key(part.object);
        if (!name) return fail(Code::invalid_argument, "no object of this bucket was brought");
        value.places.push_back({.object = *name, .offset = 0, .bytes = part.bytes, .digest = part.digest});
      }
      names_.push_back({.key = log_key(kBlobKey, key), .value = std::move(value)});
      return {};
    }
    Status commit() override {
      FRESHET_TRY(upload());
      return backend_.append(std::exchange(names_, {}), Split::may);
    }
    Result<bool> finish() override {
      FRESHET_TRY(upload());
      if (names_.size() <= kNamesOfABatch) return true;
      FRESHET_TRY(backend_.append(std::exchange(names_, {}), Split::may));
      return false;
    }
    Status check_finished() const override {
      for (const log::Change& name : names_) {
        for (const log::Place& place : name.value->places) {
          if (backend_.log_->may_name(place.object)) continue;
          return fail(Code::unavailable, format("{} is to be erased, since its upload took too long, or all that it "
                                                "shared its object with went: put it again",
                                                log::object_key(place.object)));
        }
      }
      return {};
    }
    void give_names(std::vector<log::Change>& changes) {
      for (log::Change& name : std::exchange(names_, {})) changes.push_back(std::move(name));
    }

   private:
    Status upload() {
      FRESHET_ASSIGN(Packer::Values values, packer_.finish());
      for (auto& [key, value] : values) names_.push_back({.key = log_key(kBlobKey, key), .value = std::move(value)});
      return {};
    }

    BucketBackend& backend_;
    std::vector<log::Change> names_;  ///< The blobs' places.
    Packer packer_;
  };

  Status check_writable() const {
    if (read_only_) return fail(Code::failed_precondition, "the repository is opened for reading only");
    return {};
  }

  // A reader of a repository knows its versions from the opening. So their places stay those of the opening, and the
  // grace of the log keeps the objects meanwhile.
  void keep_values() {
    // A member that never owned the log always answers.
    static_cast<void>(log_->scan("", [this](std::string_view key, const log::Value& value) {
      opened_.emplace_hint(opened_.end(), key, value);
      return true;
    }));
  }

  Result<std::optional<log::Value>> value_of(std::string_view key) const {
    if (!read_only_) return log_->get(key);
    const auto found = opened_.find(key);
    return found == opened_.end() ? std::nullopt : std::optional(found->second);
  }

  Status scan_values(std::string_view prefix,
                     const std::function<bool(std::string_view key, const log::Value& value)>& each) const {
    if (!read_only_) return log_->scan(prefix, each);
    for (auto at = opened_.lower_bound(prefix); at != opened_.end() && at->first.starts_with(prefix); ++at) {
      if (!each(at->first, at->second)) break;
    }
    return {};
  }

  bool is_erased(std::string_view key) const {
    const MutexLock lock(mutex_);
    return erased_.contains(key) || erasing_.contains(key);
  }

  Result<log::Value> blob(std::string_view key) const {
    if (is_erased(key)) return fail(Code::not_found, "no such blob");
    FRESHET_ASSIGN(std::optional<log::Value> value, value_of(log_key(kBlobKey, key)));
    if (!value) return fail(Code::not_found, "no such blob");
    return std::move(*value);
  }

  /// Appends the changes, and the erasures that wait. Changes of records are in one batch, with the blobs that they
  /// name; those of blobs alone may be in several.
  enum class Split : std::uint8_t { never, may };
  Status append(std::vector<log::Change> changes, Split split) {
    using Keys = std::set<std::string, std::less<>>;
    FRESHET_ASSIGN(const Keys taken, take_erased(changes));
    for (const std::string& key : taken) changes.push_back({.key = log_key(kBlobKey, key), .value = std::nullopt});
    Status appended;
    while (appended && !changes.empty()) {
      log::Batch batch;
      const std::size_t count = split == Split::may ? std::min(changes.size(), kChangesOfABatch) : changes.size();
      const auto rest = changes.end() - static_cast<std::ptrdiff_t>(count);
      batch.changes.assign(std::make_move_iterator(rest), std::make_move_iterator(changes.end()));
      changes.erase(rest, changes.end());
      appended = log_->apply(std::move(batch), deadline_in(kAppendMax));
    }
    {
      const MutexLock lock(mutex_);
      for (const std::string& key : taken) {
        erasing_.erase(key);
        if (!appended) erased_.insert(key);
      }
    }
    erased_changed_.notify_all();
    return appended;
  }

  bool is_being_erased(const std::vector<log::Change>& changes) const FRESHET_REQUIRES(mutex_) {
    for (const log::Change& change : changes) {
      if (change.key.front() == kBlobKey && erasing_.contains(std::string_view(change.key).substr(1))) return true;
    }
    return false;
  }

  /// The erasures for this batch. A blob that is written anew is not erased; and it is not written while its erasure is
  /// on its way in another batch, which might come later.
  Result<std::set<std::string, std::less<>>> take_erased(const std::vector<log::Change>& changes) {
    const MutexLock lock(mutex_);
    // An append ends within half a minute.
    while (is_being_erased(changes)) {
      erased_changed_.wait_until(mutex_, Interruption::next_look(deadline_in(kAppendMax)));
      mutex_.unlock();
      const Status wanted = Interruption::check();
      mutex_.lock();
      FRESHET_TRY(wanted);
    }
    for (const log::Change& change : changes) {
      if (change.key.front() != kBlobKey) continue;
      const std::string_view key = std::string_view(change.key).substr(1);
      if (const auto found = erased_.find(key); found != erased_.end()) erased_.erase(found);
    }
    std::set<std::string, std::less<>> taken = std::exchange(erased_, {});
    erasing_.insert(taken.begin(), taken.end());
    return taken;
  }

  /// `read` answers not_found if an object is not there. If the log's end still names the object, this is damage.
  Status read_value(std::string_view key, const log::Value& value,
                    const std::function<Status(const log::Value& now)>& read) const {
    Status status = read(value);
    if (status || status.error().code() != Code::not_found) return status;
    if (read_only_) FRESHET_TRY(log_->look(deadline_in(kLookMax)));
    FRESHET_ASSIGN(const std::optional<log::Value> now, log_->get(key));
    if (!now) {
      return fail(Code::unavailable,
                  read_only_ ? "the owner erased its bytes after this process opened the repository: open it again"
                             : "its bytes were erased meanwhile");
    }
    if (*now != value) status = read(*now);
    if (status || status.error().code() != Code::not_found) return status;
    return fail(Code::corrupt, "a part of the blob is missing: " + status.error().message());
  }

  /// What was read, so that the caller knows its places.
  Result<log::Value> read_blob_value(std::string_view key, std::uint64_t offset, MutableBytes out) const {
    FRESHET_ASSIGN(log::Value value, blob(key));
    const auto read = [&](const log::Value& now) -> Status {
      if (offset > now.bytes() || out.size() > now.bytes() - offset) {
        return fail(Code::corrupt, format("the blob has {} bytes, not {}", now.bytes(), offset + out.size()));
      }
      FRESHET_TRY(read_places(*store_, now, offset, out));
      value = now;
      return {};
    };
    const log::Value there = value;  // read() changes the other one.
    FRESHET_TRY(read_value(log_key(kBlobKey, key), there, read));
    return value;
  }

  Result<std::string> text_of(std::string_view key, const log::Value& value) const {
    if (value.places.empty()) return value.inlined;
    std::string text;
    FRESHET_TRY(read_value(key, value, [&](const log::Value& now) { return read_text(now, text); }));
    return text;
  }

  Status read_text(const log::Value& value, std::string& text) const {
    if (value.bytes() > kRecordTextMax) {
      return fail(Code::corrupt, format("a record has {} bytes: more than {}", value.bytes(), kRecordTextMax));
    }
    text.assign(static_cast<std::size_t>(value.bytes()), '\0');
    return read_places(*store_, value, 0, MutableBytes(reinterpret_cast<std::byte*>(text.data()), text.size()));
  }

  const std::shared_ptr<ObjectStore> store_;
  const bool read_only_;
  const std::shared_ptr<log::LogStore> log_;  ///< Ends before the store.
  SharedPacks packs_{*store_, *log_};
  log::LogState::Values opened_;  ///< Of a reader: as they were at the opening.
  mutable Mutex mutex_;
  CondVar erased_changed_;
  std::set<std::string, std::less<>> erased_ FRESHET_GUARDED_BY(mutex_);   ///< To go with the next batch.
  std::set<std::string, std::less<>> erasing_ FRESHET_GUARDED_BY(mutex_);  ///< In a batch that is on its way.
};

}  // namespace
}  // namespace bucket

Result<std::unique_ptr<BucketMember>> BucketMember::open(std::shared_ptr<ObjectStore> store,
                                                         const BucketOptions& options) {
  // Wrong keys and missing buckets are told at once, and by their own names: a log's member would try on. A listing
  // makes no bucket; with some stores an upload does.
  FRESHET_TRY(store->list("", "", 1, deadline_in(bucket::kFirstCallMax)));
  std::unique_ptr<BucketMember> member(new BucketMember(std::move(store), options));
  auto opened = log::LogStore::open(std::make_shared<bucket::ObjectStoreCaller>(member->store_),
                                    {.log = options.log, .open_within = bucket::kOpenMax});
  if (!opened) return fail(bucket::in_place(*member->store_, std::move(opened).error()));
  member->log_ = std::move(*opened);
  if (member->log_->is_empty() && (options.read_only || !options.create)) {
    return fail(Code::not_found, format("{}: there is no repository", member->store_->place()));
  }
  return member;
}

Result<std::unique_ptr<Backend>> BucketMember::own(Time deadline) {
  if (log_->is_empty() && check_exclusion_) {
    Status checked = check_exclusion(*store_, bucket::kProbeFolder, deadline_in(bucket::kFirstObjectsMax));
    if (!checked) {
      return fail(
          std::move(checked).error().with_context("ask the store whether its conditional puts exclude each other"));
    }
    check_exclusion_ = false;
    deadline = std::max(deadline, deadline_in(bucket::kOpenMax));
  }
  Status claimed = log_->claim(deadline);
  if (!claimed) return fail(bucket::in_place(*store_, std::move(claimed).error()));
  return std::make_unique<bucket::BucketBackend>(store_, log_, false);
}

std::unique_ptr<Backend> BucketMember::read() const {
  return std::make_unique<bucket::BucketBackend>(store_, log_, true);
}

Result<std::unique_ptr<Backend>> open_bucket_backend(std::shared_ptr<ObjectStore> store, const BucketOptions& options) {
  const Time deadline = deadline_in(bucket::kOpenMax);
  FRESHET_ASSIGN(const std::unique_ptr<BucketMember> member, BucketMember::open(std::move(store), options));
  if (options.read_only) return member->read();
  return member->own(deadline);
}

}  // namespace freshet
