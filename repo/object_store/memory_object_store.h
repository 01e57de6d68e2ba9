// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Objects in this process's memory, for tests and the simulator. With faults, it does what a distant store and the net
/// before it do: it loses requests and answers, applies writes late, and applies writes twice.

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "repo/object_store/object_store.h"

namespace freshet {

/// Each number is in thousandths of the calls. They are drawn from `seed`, in the order of the calls.
struct MemoryObjectFaults {
  std::uint64_t seed = 0;
  unsigned busy = 0;            ///< The store refuses the call: unavailable; a creation is refused.
  unsigned lost_request = 0;    ///< The call times out; the store never hears of it.
  unsigned lost_answer = 0;     ///< The call times out; the store has done it.
  unsigned late = 0;            ///< A write times out; the store does it after some later calls.
  unsigned twice = 0;           ///< A write is done, and done again after some later calls.
  unsigned calls_late_max = 8;  ///< A late write is done after 1 to so many later calls.
  /// Called before each call is done, with 0 to delay_max. A simulator turns its clock.
  Duration delay_max = Duration::zero();
  std::function<void(Duration)> on_delay;
  /// False: a store that ignores If-None-Match. Every creation makes the object.
  bool exclusive = true;
};

/// Any thread.
class MemoryObjectStore final : public ObjectStore, public SignedObjects {
 public:
  /// `clock` is the store's clock; it must outlive the store.
  explicit MemoryObjectStore(MemoryObjectFaults faults = {}, const Clock& clock = system_clock());
  ~MemoryObjectStore() override;

  /// From now on; the seed begins anew. Late writes stay under way.
  void set_faults(MemoryObjectFaults faults);
  /// Does all writes that are still under way, in a drawn order.
  void do_late_writes();
  std::size_t late_writes() const;

  std::string_view kind() const override { return "memory"; }
  std::string place() const override { return "memory"; }
  Creation create(std::string_view key, Bytes bytes, Time deadline,
                  std::optional<std::uint32_t> crc32c = std::nullopt) override;
  Status put(std::string_view key, Bytes bytes, Time deadline) override;
  Status remove(std::string_view key, Time deadline) override;
  Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const override;
  Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const override;
  Result<ObjectHead> head(std::string_view key, Time deadline) const override;
  Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                          Time deadline) const override;
  Result<std::int64_t> now_unix_s(Time deadline) const override;
  Result<SignedRequest> sign_get(std::string_view key, Duration life) const override;
  Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                    Duration life) const override;

  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override;
  Creation create(const SignedRequest& request, Bytes bytes, Time deadline) override;

 private:
  enum class Kind : std::uint8_t { create, put, remove };
  struct Write {
    Kind kind = Kind::create;
    std::string key;
    std::string bytes;
  };
  struct Late {
    std::uint64_t at_call = 0;
    Write write;
  };
  struct Kept {
    std::string bytes;
    std::int64_t modified_unix_s = 0;
  };
  enum class Fate : std::uint8_t { done, busy, lost_request, lost_answer, late, twice };

  Fate begin(bool is_write, Time deadline) const;
  Result<bool> do_write(Write write, Time deadline);
  bool apply(const Write& write) const FRESHET_REQUIRES(mutex_);
  void do_due() const FRESHET_REQUIRES(mutex_);
  std::uint64_t draw(std::uint64_t below) const FRESHET_REQUIRES(mutex_);
  Result<Kept> find(std::string_view key, Time deadline) const;

  const Clock& clock_;
  mutable Mutex mutex_;
  MemoryObjectFaults faults_ FRESHET_GUARDED_BY(mutex_);
  mutable std::mt19937_64 random_ FRESHET_GUARDED_BY(mutex_);
  mutable std::uint64_t calls_ FRESHET_GUARDED_BY(mutex_) = 0;
  mutable std::map<std::string, Kept, std::less<>> objects_ FRESHET_GUARDED_BY(mutex_);
  mutable std::vector<Late> late_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
