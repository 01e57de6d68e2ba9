// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One repository's part of a RADOS pool: a namespace with two objects that keep tables (omaps) and many that keep
/// bytes. Private to this folder; repo/FORMAT.md has the layout.
///
/// A process owns the repository by a lock that it renews, and writes under a fence: whoever takes over gives the
/// tables another token, and what the one before still had on its way is refused by the cluster.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/backend/backend.h"
#include "repo/rados/library.h"

namespace freshet::rados {

/// Changes of one table, applied as one.
struct TableChange {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> remove;
  bool empty() const { return set.empty() && remove.empty(); }
};

/// Any thread.
class Pool {
 public:
  static constexpr const char* kRecords = "records";
  static constexpr const char* kHeads = "heads";

  static Result<std::unique_ptr<Pool>> open(const RadosOptions& options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Refused (unavailable) when somebody else has taken the repository over since.
  Status change(const char* table, const TableChange& change);
  /// Makes sure that nothing which is still on its way will change a table from here on.
  Status fence();

  /// Entries whose key starts with `prefix`, ascending. Not one state of the table, unless nobody changes it meanwhile.
  Status scan(const char* table, std::string_view prefix,
              const std::function<bool(std::string_view key, std::string_view value)>& each) const;
  Result<std::string> get(const char* table, std::string_view key) const;  ///< not_found.

  /// Names of all objects that keep bytes; in no order.
  Result<std::vector<std::string>> objects() const;
  Status remove(const std::string& object);

  /// Reads and writes in flight, of one thread. Whatever is under way must stay where it is until wait().
  class Flight {
   public:
    explicit Flight(const Pool& pool) : pool_(pool) {}
    ~Flight() { static_cast<void>(wait()); }
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;
    /// Copies the bytes. Waits while too much is under way.
    Status write(const std::string& object, Bytes bytes);
    Status read(const std::string& object, std::uint64_t offset, MutableBytes out);
    /// The first error of all that came to an end; not_found for an object that is not there, corrupt for one that is
    /// too short.
    Status wait();

   private:
    struct One {
      rados_completion_t completion = nullptr;
      std::string object;
      std::uint64_t bytes = 0;
      bool is_read = false;
    };
    Result<rados_completion_t> room_for(std::uint64_t bytes);
    void settle_first();
    const Pool& pool_;
    std::vector<One> under_way_;
    std::uint64_t bytes_ = 0;
    Status status_;
  };

 private:
  Pool(const Library& library, const RadosOptions& options) : rados_(library), options_(options) {}
  Status connect();
  Status look() const;  ///< Whether there is a repository.
  Status refuse_other_format() const;
  Status own();
  Status take_over();
  void renew();
  Status set_fence(const char* table, const std::optional<std::string>& before, const std::string& token);
  std::string new_token() const;
  Status move_fence(const char* table, std::string& token) FRESHET_REQUIRES(token_mutex_);
  std::string& token_of(const char* table) FRESHET_REQUIRES(token_mutex_) {
    return table == kRecords ? records_token_ : heads_token_;
  }
  Result<std::string> owner_of_lock() const;
  std::string context(std::string_view what) const;

  const Library& rados_;
  const RadosOptions options_;
  rados_t cluster_ = nullptr;
  rados_ioctx_t io_ = nullptr;
  std::string cookie_;  ///< Of the lock.
  bool owns_ = false;

  Mutex token_mutex_;
  /// Of the fence of each table.
  std::string records_token_ FRESHET_GUARDED_BY(token_mutex_);
  std::string heads_token_ FRESHET_GUARDED_BY(token_mutex_);

  Mutex renew_mutex_;
  CondVar renew_wake_;
  bool closing_ FRESHET_GUARDED_BY(renew_mutex_) = false;
  std::thread renewer_;
};

}  // namespace freshet::rados
