// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A backend around another one that passes everything on: whoever times, counts or fails some of its calls overrides
/// those. Threads and errors are those of the inner one.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "repo/backend/backend.h"

namespace freshet {

class BackendWrapper : public Backend {
 public:
  explicit BackendWrapper(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view kind() const override { return inner_->kind(); }
  bool durable() const override { return inner_->durable(); }
  bool read_only() const override { return inner_->read_only(); }
  std::size_t readers_max() const override { return inner_->readers_max(); }
  Status check_current() const override { return inner_->check_current(); }
  Result<std::unique_ptr<BlobWriter>> write_blobs() override { return inner_->write_blobs(); }
  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    return inner_->read_blob(key, offset, out);
  }
  Result<Digest> read_and_digest(std::string_view key, MutableBytes out) const override {
    return inner_->read_and_digest(key, out);
  }
  Result<std::vector<std::optional<Digest>>> read_neighbours(std::span<const WholeRead> reads) const override {
    return inner_->read_neighbours(reads);
  }
  Result<std::vector<SignedPart>> sign_blob(std::string_view key, Duration life) const override {
    return inner_->sign_blob(key, life);
  }
  Result<SignedUploads> sign_uploads(std::span<const PartToBring> parts, Duration life) override {
    return inner_->sign_uploads(parts, life);
  }
  bool takes_brought() const override { return inner_->takes_brought(); }
  Result<std::vector<bool>> find_brought(std::span<const BroughtPart> parts) const override {
    return inner_->find_brought(parts);
  }
  Status erase_blob(std::string_view key) override { return inner_->erase_blob(key); }
  Status list_blobs(const std::function<bool(std::string_view key, std::uint64_t bytes)>& each) const override {
    return inner_->list_blobs(each);
  }
  Status reclaim() override { return inner_->reclaim(); }
  std::vector<std::string> left_by_reclaim() const override { return inner_->left_by_reclaim(); }
  Status apply(const Batch& batch) override { return inner_->apply(batch); }
  Result<std::string> get(std::string_view key) const override { return inner_->get(key); }
  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view key, std::string_view value)>& each) const override {
    return inner_->scan(prefix, each);
  }
  Status recover() override { return inner_->recover(); }
  Result<std::vector<MediumDamage>> find_damage(
      const std::function<void(std::uint64_t done, std::uint64_t total)>& on_read) const override {
    return inner_->find_damage(on_read);
  }
  Result<DiskUse> disk_use() const override { return inner_->disk_use(); }
  std::string state() const override { return inner_->state(); }
  std::optional<std::string> derived(std::string_view name, std::uint64_t bytes_max) const override {
    return inner_->derived(name, bytes_max);
  }
  void keep_derived(std::string_view name, std::string_view text, Derived where) override {
    inner_->keep_derived(name, text, where);
  }

 protected:
  Backend& inner() const { return *inner_; }

 private:
  const std::shared_ptr<Backend> inner_;
};

}  // namespace freshet
