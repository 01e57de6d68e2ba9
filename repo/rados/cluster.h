// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A connection to one namespace of a pool, and operations on its objects. Private to this folder.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/rados/address.h"
#include "repo/rados/library.h"

namespace freshet::rados {

/// Any thread.
class Cluster {
 public:
  static Result<std::unique_ptr<Cluster>> connect(const RadosAddress& address);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const Library& rados() const { return rados_; }
  rados_ioctx_t io() const { return io_; }
  /// "rados://pool/repository".
  std::string place() const;
  /// What the cluster answered, a negative errno, to `what` ("create log/7").
  Error error_of(int answer, std::string_view what) const;

 private:
  Cluster(const Library& library, const RadosAddress& address) : rados_(library), address_(address) {}
  Status open();
  std::string user() const { return "client." + (address_.user.empty() ? std::string("admin") : address_.user); }

  const Library& rados_;
  const RadosAddress address_;
  rados_t cluster_ = nullptr;
  rados_ioctx_t io_ = nullptr;
};

/// An operation on one object. Memory that it reads from or writes to stays until it has ended, as the object does. One
/// thread at a time.
class Operation {
 public:
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Waits until the cluster has answered, and returns its answer. timed_out, cancelled: there was none, and the
  /// operation was given up; the cluster may have done it, or may still do it.
  Result<int> answer(Time deadline) FRESHET_EXCLUDES(mutex_);

 protected:
  explicit Operation(const Cluster& cluster);
  ~Operation();
  rados_completion_t completion() const { return completion_; }
  void on_sent(int answer) { sent_ = answer; }
  /// Gives it up, if it has not ended.
  void end();

  const Cluster& cluster_;

 private:
  static void on_complete(rados_completion_t completion, void* self);

  rados_completion_t completion_ = nullptr;
  std::optional<int> sent_;  ///< What its sending answered.
  bool is_over_ = false;
  Mutex mutex_;
  CondVar answered_;
  bool is_answered_ FRESHET_GUARDED_BY(mutex_) = false;
};

/// Its steps are done all or none.
class WriteOperation : public Operation {
 public:
  explicit WriteOperation(const Cluster& cluster) : Operation(cluster), op_(cluster.rados().rados_create_write_op()) {}
  ~WriteOperation();
  rados_write_op_t op() const { return op_; }
  void send(const std::string& object);

 private:
  const rados_write_op_t op_;
};

class ReadOperation : public Operation {
 public:
  explicit ReadOperation(const Cluster& cluster) : Operation(cluster), op_(cluster.rados().rados_create_read_op()) {}
  ~ReadOperation();
  rados_read_op_t op() const { return op_; }
  void send(const std::string& object);

 private:
  const rados_read_op_t op_;
};

}  // namespace freshet::rados
