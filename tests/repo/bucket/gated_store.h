// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/interruption.h"
#include "repo/object_store/object_store.h"

namespace freshet {

/// While its gate is closed, this process reaches the store no more. A test may hear of calls, and hide objects.
class GatedStore final : public ObjectStore {
 public:
  explicit GatedStore(std::shared_ptr<ObjectStore> inner) : inner_(std::move(inner)) {}
  std::atomic<bool> is_open{true};
  enum class Call { create, read, head, list };
  /// On the thread of the call, before it. Set while nobody calls.
  std::function<void(Call call, std::string_view key)> before = [](Call, std::string_view) {};
  std::string unlisted;  ///< The key of an object that no listing has. Set while nobody calls.
  std::string phantom;   ///< Listed, though no such object came to be. Set while nobody calls.

  std::string_view kind() const override { return inner_->kind(); }
  std::string place() const override { return inner_->place(); }
  Creation create(std::string_view key, Bytes bytes, Time deadline, std::optional<std::uint32_t> crc32c) override {
    before(Call::create, key);
    if (Interruption::is_wanted()) {
      return {.outcome = Created::unsettled, .error = Error(Code::cancelled, "the call was interrupted")};
    }
    if (!is_open) return {.outcome = Created::unsettled, .error = closed()};
    return inner_->create(key, bytes, deadline, crc32c);
  }
  Status put(std::string_view key, Bytes bytes, Time deadline) override {
    return is_open ? inner_->put(key, bytes, deadline) : Status(fail(closed()));
  }
  Status remove(std::string_view key, Time deadline) override {
    return is_open ? inner_->remove(key, deadline) : Status(fail(closed()));
  }
  Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const override {
    return is_open ? inner_->get(key, bytes_max, deadline) : Result<Object>(fail(closed()));
  }
  Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    before(Call::read, key);
    return is_open ? inner_->read(key, offset, out, deadline) : Status(fail(closed()));
  }
  Result<ObjectHead> head(std::string_view key, Time deadline) const override {
    before(Call::head, key);
    return is_open ? inner_->head(key, deadline) : Result<ObjectHead>(fail(closed()));
  }
  Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                          Time deadline) const override {
    before(Call::list, prefix);
    if (!is_open) return fail(closed());
    Result<ObjectPage> page = inner_->list(prefix, after, keys_max, deadline);
    if (page) std::erase_if(page->objects, [this](const ListedObject& one) { return one.key == unlisted; });
    if (page && !phantom.empty() && phantom.starts_with(prefix) && phantom > after) {
      const auto place = std::ranges::find_if(page->objects, [this](const auto& one) { return one.key > phantom; });
      page->objects.insert(place, {.key = phantom});
      page->more = page->more || page->objects.size() > keys_max;
      if (page->objects.size() > keys_max) page->objects.pop_back();
    }
    return page;
  }
  Result<std::int64_t> now_unix_s(Time deadline) const override { return inner_->now_unix_s(deadline); }
  Result<SignedRequest> sign_get(std::string_view key, Duration life) const override {
    return inner_->sign_get(key, life);
  }
  Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                    Duration life) const override {
    return inner_->sign_create(key, bytes, crc32c, life);
  }

 private:
  static Error closed() { return Error(Code::unavailable, "the gate is closed"); }
  const std::shared_ptr<ObjectStore> inner_;
};

}  // namespace freshet
