#pragma once

/// A backend that asks a test before it reads a blob.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "repo/backend.h"

namespace freshet {

class HookedBackend final : public Backend {
 public:
  /// Called on whichever thread reads; an error is the read's.
  using Hook = std::function<Status()>;

  explicit HookedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
  void before_reads(Hook hook) {
    const MutexLock lock(mutex_);
    hook_ = std::move(hook);
  }

  std::string_view kind() const override { return inner_->kind(); }
  bool durable() const override { return inner_->durable(); }
  bool read_only() const override { return inner_->read_only(); }
  Result<std::unique_ptr<BlobWriter>> write_blobs() override { return inner_->write_blobs(); }
  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    Hook hook;
    {
      const MutexLock lock(mutex_);
      hook = hook_;
    }
    if (hook) FRESHET_TRY(hook());
    return inner_->read_blob(key, offset, out);
  }
  Status erase_blob(std::string_view key) override { return inner_->erase_blob(key); }
  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    return inner_->list_blobs(each);
  }
  Status reclaim() override { return inner_->reclaim(); }
  Status apply(const Batch& batch) override { return inner_->apply(batch); }
  Result<std::string> get(std::string_view key) const override { return inner_->get(key); }
  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    return inner_->scan(prefix, each);
  }
  Status recover() override { return inner_->recover(); }
  Result<DiskUse> disk_use() const override { return inner_->disk_use(); }

 private:
  const std::unique_ptr<Backend> inner_;
  mutable Mutex mutex_;
  Hook hook_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
