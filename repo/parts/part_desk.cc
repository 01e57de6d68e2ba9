// SPDX-License-Identifier: Apache-2.0
#include "repo/parts/part_desk.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "core/base/env.h"
#include "core/base/format.h"
#include "repo/parts/part_books.h"

namespace freshet {
namespace {

/// Memory comes in blocks of so many bytes: the largest pages that the kernel may give to the first byte.
constexpr std::uint64_t kBlockBytes = std::uint64_t{2} << 20;

struct FreeBlocks {
  bool aligned = false;
  void operator()(std::byte* bytes) const {
    if (aligned) {
      ::operator delete[](bytes, std::align_val_t{kBlockBytes});
    } else {
      ::operator delete[](bytes);
    }
  }
};
using BlockMemory = std::unique_ptr<std::byte[], FreeBlocks>;

/// None of it is there before it is written. What is smaller than a block is not aligned to one: a model may have very
/// many small tensors, and each would take the room of a whole block.
BlockMemory block_memory(std::uint64_t bytes) {
  const bool aligned = bytes >= kBlockBytes;
  void* const memory = aligned ? ::operator new[](bytes, std::align_val_t{kBlockBytes}, std::nothrow)
                               : ::operator new[](bytes, std::nothrow);
  return BlockMemory(static_cast<std::byte*>(memory), FreeBlocks{.aligned = aligned});
}

Error no_such_put() {
  return Error(Code::not_found,
               "no put by parts has this token here: it was committed or aborted, or ended because no call came for "
               "two minutes; begin it again");
}

}  // namespace

/// One put by parts. Parts are noted under its lock, and copied outside of it.
class PartDesk::OpenPut {
 public:
  OpenPut(std::string owner, std::string model, const VersionId& id, std::shared_ptr<const Architecture> architecture,
          std::shared_ptr<std::atomic<std::uint64_t>> all_bytes)
      : owner_(std::move(owner)),
        model_(std::move(model)),
        id_(id),
        architecture_(std::move(architecture)),
        all_bytes_(std::move(all_bytes)) {}
  ~OpenPut() { *all_bytes_ -= charged_; }
  OpenPut(const OpenPut&) = delete;
  OpenPut& operator=(const OpenPut&) = delete;

  const Architecture& architecture() const { return *architecture_; }
  const std::string& owner() const { return owner_; }

  /// The books of the put itself: what its architecture takes. False: too much waits already.
  bool begin(std::uint64_t bytes_max) FRESHET_EXCLUDES(mutex_);

  /// Takes one part; its digest was proved. `bytes_max`: of all puts together.
  Status take(const TensorPart& part, const Digest& digest, std::uint64_t bytes_max) FRESHET_EXCLUDES(mutex_);
  Result<std::vector<std::optional<Digest>>> digests() FRESHET_EXCLUDES(mutex_);
  /// No part is taken from now on, unless it fails. The manifest, with the digests of what came.
  Result<Manifest> begin_commit(const Manifest& given, bool has_weights) FRESHET_EXCLUDES(mutex_);
  void end_commit(bool is_stored) FRESHET_EXCLUDES(mutex_);
  /// Nothing is taken or committed from now on. failed_precondition while it is being committed.
  Status end() FRESHET_EXCLUDES(mutex_);
  /// REQUIRES: between begin_commit() and end_commit().
  Result<Bytes> bytes_of(std::uint32_t tensor) const FRESHET_EXCLUDES(mutex_);

  // The desk's, under its lock.
  Time used{};
  std::size_t uses = 0;

 private:
  struct Tensor {
    explicit Tensor(std::uint64_t count)
        : bytes(block_memory(count)),
          books(count),
          written(bytes == nullptr ? 0 : (count + kBlockBytes - 1) / kBlockBytes) {}
    BlockMemory bytes;
    PartBooks books;
    std::vector<bool> written;     ///< Blocks.
    std::optional<Digest> digest;  ///< Of all of it, once it was asked for.
  };
  bool charge(std::uint64_t bytes, std::uint64_t bytes_max) FRESHET_REQUIRES(mutex_);
  void refund(std::uint64_t bytes) FRESHET_REQUIRES(mutex_);
  /// The blocks that the part is the first to write, marked as written.
  static std::vector<std::size_t> begin_blocks(Tensor& tensor, const TensorPart& part);
  Result<std::vector<std::optional<Digest>>> digests_of_all() FRESHET_REQUIRES(mutex_);
  Status check_open() const FRESHET_REQUIRES(mutex_);
  Status check_quiet() const FRESHET_REQUIRES(mutex_);
  Status check_same(const Manifest& given) const;
  Error hole(std::uint32_t tensor, const PartBooks* books) const;
  std::string name_of(std::uint32_t tensor) const { return model_ + " " + architecture_->tensors()[tensor].name; }

  const std::string owner_;
  const std::string model_;
  const VersionId id_;
  const std::shared_ptr<const Architecture> architecture_;
  const std::shared_ptr<std::atomic<std::uint64_t>> all_bytes_;

  mutable Mutex mutex_;
  std::uint64_t charged_ = 0;
  std::size_t copying_ FRESHET_GUARDED_BY(mutex_) = 0;
  bool committing_ FRESHET_GUARDED_BY(mutex_) = false;
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
  std::map<std::uint32_t, Tensor> tensors_ FRESHET_GUARDED_BY(mutex_);
};

class PartDesk::Use {
 public:
  Use(PartDesk& desk, std::shared_ptr<OpenPut> put) : desk_(desk), put_(std::move(put)) {}
  ~Use() {
    const MutexLock lock(desk_.mutex_);
    --put_->uses;
    put_->used = desk_.clock_.now();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  OpenPut* operator->() const { return put_.get(); }

 private:
  PartDesk& desk_;
  const std::shared_ptr<OpenPut> put_;
};

bool PartDesk::OpenPut::begin(std::uint64_t bytes_max) {
  const MutexLock lock(mutex_);
  return charge(architecture_->encoded().size(), bytes_max);
}

bool PartDesk::OpenPut::charge(std::uint64_t bytes, std::uint64_t bytes_max) {
  std::uint64_t before = *all_bytes_;
  do {
    if (before > bytes_max || bytes > bytes_max - before) return false;
  } while (!all_bytes_->compare_exchange_weak(before, before + bytes));
  charged_ += bytes;
  return true;
}

void PartDesk::OpenPut::refund(std::uint64_t bytes) {
  charged_ -= bytes;
  *all_bytes_ -= bytes;
}

Status PartDesk::OpenPut::check_open() const {
  if (ended_) return fail(no_such_put());
  if (committing_) return fail(Code::failed_precondition, "the put is being committed");
  return {};
}

Status PartDesk::OpenPut::check_quiet() const {
  FRESHET_TRY(check_open());
  if (copying_ == 0) return {};
  return fail(Code::failed_precondition, "a part is still on its way: commit after all parts have come");
}

std::vector<std::size_t> PartDesk::OpenPut::begin_blocks(Tensor& tensor, const TensorPart& part) {
  std::vector<std::size_t> blocks;
  for (std::uint64_t i = 0; i < part.count; ++i) {
    const std::uint64_t begin = part.offset + i * part.stride;
    for (std::size_t block = begin / kBlockBytes; block * kBlockBytes < begin + part.length; ++block) {
      if (tensor.written[block]) continue;
      tensor.written[block] = true;
      blocks.push_back(block);
    }
  }
  return blocks;
}

Status PartDesk::OpenPut::take(const TensorPart& part, const Digest& digest, std::uint64_t bytes_max) {
  std::byte* to = nullptr;
  {
    const MutexLock lock(mutex_);
    FRESHET_TRY(check_open());
    const std::uint64_t tensor_bytes = architecture_->tensors()[part.tensor].bytes();
    if (tensor_bytes > bytes_max) {
      return fail(Code::out_of_space, format("part of {}: the tensor has {} bytes, and puts by parts may have {}",
                                             name_of(part.tensor), tensor_bytes, bytes_max));
    }
    const auto [at, is_first] = tensors_.try_emplace(part.tensor, tensor_bytes);
    Tensor& tensor = at->second;
    if (tensor.bytes == nullptr) {
      tensors_.erase(at);
      return fail(Code::out_of_space, format("part of {}: no memory for {} bytes", name_of(part.tensor), tensor_bytes));
    }
    const std::vector<std::size_t> blocks = begin_blocks(tensor, part);
    std::uint64_t memory = PartBooks::kBytesOfPart + part.count * PartBooks::kBytesOfRun;
    for (const std::size_t block : blocks) memory += std::min(kBlockBytes, tensor_bytes - block * kBlockBytes);
    const bool has_room = charge(memory, bytes_max);
    Result<bool> is_new = has_room ? tensor.books.add(part, digest) : Result<bool>(false);
    if (!is_new || !*is_new) {
      for (const std::size_t block : blocks) tensor.written[block] = false;
      if (has_room) refund(memory);
      if (is_first) tensors_.erase(at);
    }
    if (!has_room) {
      return fail(Code::out_of_space,
                  format("part of {}: {} bytes of puts by parts wait already, of {} that may; commit or abort some",
                         name_of(part.tensor), all_bytes_->load(), bytes_max));
    }
    if (!is_new) return fail(std::move(is_new).error().with_context("part of " + name_of(part.tensor)));
    if (!*is_new) return {};
    to = tensor.bytes.get() + part.offset;
    ++copying_;
  }
  for (std::uint64_t i = 0; i < part.count; ++i) {
    std::memcpy(to + i * part.stride, part.bytes.data() + i * part.length, part.length);
  }
  const MutexLock lock(mutex_);
  --copying_;
  return {};
}

Error PartDesk::OpenPut::hole(std::uint32_t tensor, const PartBooks* books) const {
  if (books == nullptr) return Error(Code::failed_precondition, name_of(tensor) + ": no part of it came");
  const PartBooks::Hole hole = books->first_hole();
  return Error(Code::failed_precondition,
               format("{}: its bytes from {} to {} did not come, {} of {} did", name_of(tensor), hole.begin, hole.end,
                      books->bytes(), architecture_->tensors()[tensor].bytes()));
}

Result<std::vector<std::optional<Digest>>> PartDesk::OpenPut::digests() {
  const MutexLock lock(mutex_);
  return digests_of_all();
}

Result<std::vector<std::optional<Digest>>> PartDesk::OpenPut::digests_of_all() {
  FRESHET_TRY(check_quiet());
  std::vector<std::optional<Digest>> digests(architecture_->tensors().size());
  for (auto& [index, tensor] : tensors_) {
    if (!tensor.books.is_complete()) return fail(hole(index, &tensor.books));
    if (!tensor.digest) {
      tensor.digest = digest_of(Bytes(tensor.bytes.get(), architecture_->tensors()[index].bytes()));
    }
    digests[index] = tensor.digest;
  }
  return digests;
}

Status PartDesk::OpenPut::check_same(const Manifest& given) const {
  std::string what;
  if (given.name.model != model_) what = format("of model {}, not of {}", model_, given.name.model);
  if (what.empty() && given.id != id_) what = format("of version {}, not of {}", to_string(id_), to_string(given.id));
  if (what.empty() && (given.architecture == nullptr || given.architecture->digest() != architecture_->digest())) {
    what = "of another architecture than the manifest's";
  }
  const std::size_t tensors = architecture_->tensors().size();
  if (what.empty() && (given.owners.size() != tensors || given.digests.size() != tensors)) {
    return fail(Code::invalid_argument, "the manifest does not have an owner and a digest for each tensor");
  }
  return what.empty() ? Status() : fail(Code::invalid_argument, "the token belongs to a put by parts " + what);
}

Result<Manifest> PartDesk::OpenPut::begin_commit(const Manifest& given, bool has_weights) {
  FRESHET_TRY(check_same(given));
  const MutexLock lock(mutex_);
  FRESHET_ASSIGN(const std::vector<std::optional<Digest>> came, digests_of_all());
  Manifest manifest = given;
  const auto tensors = architecture_->tensors();
  for (std::uint32_t i = 0; has_weights && i < tensors.size(); ++i) {
    if (manifest.digests[i] != Digest{}) continue;
    if (came[i]) {
      manifest.digests[i] = *came[i];
    } else if (tensors[i].bytes() == 0) {
      manifest.digests[i] = digest_of({});
    } else {
      return fail(hole(i, nullptr));
    }
  }
  committing_ = true;
  return manifest;
}

void PartDesk::OpenPut::end_commit(bool is_stored) {
  const MutexLock lock(mutex_);
  committing_ = false;
  ended_ = is_stored;
}

Status PartDesk::OpenPut::end() {
  const MutexLock lock(mutex_);
  FRESHET_TRY(check_open());
  ended_ = true;
  return {};
}

Result<Bytes> PartDesk::OpenPut::bytes_of(std::uint32_t tensor) const {
  const MutexLock lock(mutex_);
  const std::uint64_t bytes = architecture_->tensors()[tensor].bytes();
  if (bytes == 0) return Bytes();
  const auto at = tensors_.find(tensor);
  if (at == tensors_.end()) return fail(hole(tensor, nullptr));
  return Bytes(at->second.bytes.get(), bytes);
}

Result<PutToken> PartDesk::begin_put(const std::string& model, const VersionId& id,
                                     std::shared_ptr<const Architecture> architecture) {
  return begin_put_for("", model, id, std::move(architecture));
}

Result<PutToken> PartDesk::begin_put_for(const std::string& owner, const std::string& model, const VersionId& id,
                                         std::shared_ptr<const Architecture> architecture) {
  FRESHET_TRY(check_model_name(model));
  if (architecture == nullptr) return fail(Code::invalid_argument, "a put by parts begins with an architecture");
  FRESHET_ASSIGN(const std::optional<VersionName> stored, repository_.find(id));
  if (stored) {
    return fail(Code::already_exists, format("version {} is stored, or was, as {}", to_string(id), to_string(*stored)));
  }
  drop_ended();
  PutToken token{.high = random_u64(system_env()), .low = random_u64(system_env()), .provider = {}};
  auto put = std::make_shared<OpenPut>(owner, model, id, std::move(architecture), bytes_);
  put->used = clock_.now();
  if (!put->begin(bytes_max_)) {
    return fail(Code::out_of_space,
                format("{} bytes of puts by parts wait already, of {} that may; commit or abort some", bytes_->load(),
                       bytes_max_));
  }
  const MutexLock lock(mutex_);
  if (puts_.size() >= kPartPutsMax) {
    return fail(Code::out_of_space, format("{} puts by parts are open: commit or abort some", puts_.size()));
  }
  const auto is_of_owner = [&](const auto& open) { return open.second->owner() == owner; };
  if (!owner.empty() && std::ranges::count_if(puts_, is_of_owner) >= kPartPutsOfOneMax) {
    return fail(Code::out_of_space, format("{} puts by parts of this key are open, the most that one key may have: "
                                           "commit or abort some",
                                           kPartPutsOfOneMax));
  }
  puts_.emplace(token, std::move(put));
  return token;
}

Result<std::shared_ptr<PartDesk::Use>> PartDesk::use(const PutToken& token) {
  drop_ended();
  const MutexLock lock(mutex_);
  const auto at = puts_.find(token);
  if (at == puts_.end()) return fail(no_such_put());
  ++at->second->uses;
  return std::make_shared<Use>(*this, at->second);
}

void PartDesk::drop_ended() {
  std::vector<std::shared_ptr<OpenPut>> ended;  // Much memory, which is given back without the lock.
  const MutexLock lock(mutex_);
  const Time now = clock_.now();
  for (auto at = puts_.begin(); at != puts_.end();) {
    const OpenPut& put = *at->second;
    if (put.uses != 0 || now - put.used <= kPutLease) {
      ++at;
      continue;
    }
    ended.push_back(std::move(at->second));
    at = puts_.erase(at);
  }
}

void PartDesk::remove(const PutToken& token) {
  const MutexLock lock(mutex_);
  puts_.erase(token);
}

Result<std::shared_ptr<const void>> PartDesk::keep_open(const PutToken& token) {
  FRESHET_ASSIGN(std::shared_ptr<Use> used, use(token));
  return std::shared_ptr<const void>(std::move(used));
}

Status PartDesk::put_parts(const PutToken& token, std::span<const TensorPart> parts) {
  FRESHET_ASSIGN(const std::shared_ptr<Use> put, use(token));
  for (const TensorPart& part : parts) {
    FRESHET_TRY(check_part(part, (*put)->architecture()));
    const Digest digest = digest_of(part.bytes);
    if (part.digest && *part.digest != digest) {
      return fail(Code::corrupt, format("part of tensor {}: its bytes do not match its digest",
                                        (*put)->architecture().tensors()[part.tensor].name));
    }
    FRESHET_TRY((*put)->take(part, digest, bytes_max_));
  }
  return {};
}

Result<std::vector<std::optional<Digest>>> PartDesk::part_digests(const PutToken& token) {
  FRESHET_ASSIGN(const std::shared_ptr<Use> put, use(token));
  return (*put)->digests();
}

Result<VersionName> PartDesk::commit_put(const PutToken& token, const Manifest& given, Repository::PutOptions options) {
  Result<std::shared_ptr<Use>> used = use(token);
  if (!used) {
    // A commit whose answer was lost is told so.
    FRESHET_ASSIGN(const std::optional<VersionName> stored, repository_.find(given.id));
    if (!stored) return fail(std::move(used).error());
    return fail(Code::already_exists,
                format("version {} is stored, or was, as {}", to_string(given.id), to_string(*stored)));
  }
  const Use& put = **used;
  const auto in_context = [&](Error error) { return fail(std::move(error).with_context("put " + given.name.model)); };
  Result<Manifest> manifest = put->begin_commit(given, options.has_weights);
  if (!manifest) return in_context(std::move(manifest).error());
  const auto bytes_of = [&](std::uint32_t tensor) { return put->bytes_of(tensor); };
  Result<VersionName> name = repository_.put(*manifest, bytes_of, options);
  put->end_commit(name.has_value());
  if (name) remove(token);
  return name;
}

Status PartDesk::abort_put(const PutToken& token) {
  FRESHET_ASSIGN(const std::shared_ptr<Use> put, use(token));
  FRESHET_TRY((*put)->end());
  remove(token);
  return {};
}

}  // namespace freshet
