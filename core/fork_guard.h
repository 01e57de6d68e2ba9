// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a forked child does not keep of its parent. A child has a copy of every descriptor, so a lock, a port or a
/// memory that is to end with the process that made it would live on in a data loader that this process forked. What is
/// named here is let go of in each child, before fork() returns there (pthread_atfork). Children made by vfork(),
/// posix_spawn() or exec need none of it: everything is close-on-exec. A child made by a bare clone() is not seen.

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "core/file_descriptor.h"
#include "core/result.h"

namespace freshet {

namespace fork_detail {
extern std::atomic<std::uint64_t> generation;  ///< Grows in each child.
}

/// Tells a process from the children that it forks. Immutable.
class ForkMark {
 public:
  /// This copy was made by a parent of this process: its threads are not here, and what it shares is the parent's.
  bool is_inherited() const { return fork_detail::generation.load(std::memory_order_relaxed) != made_in_; }

 private:
  std::uint64_t made_in_ = fork_detail::generation.load(std::memory_order_relaxed);
};

/// "PUBLISHER was forked with its process; open another one here", failed_precondition.
Status check_not_inherited(const ForkMark& mark, std::string_view what);

/// A descriptor that children close. One thread at a time.
class ParentsDescriptor {
 public:
  ParentsDescriptor() = default;
  /// Between open() and this a child of another thread's could keep it: no time is to be lost there.
  explicit ParentsDescriptor(FileDescriptor descriptor);
  ParentsDescriptor(ParentsDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), mark_(other.mark_) {}
  ParentsDescriptor& operator=(ParentsDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~ParentsDescriptor();

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  ForkMark mark_;
};

/// The address of a socket that a library listens at: children close every socket that has it as its own, the one that
/// listens and those that were accepted. Movable; named for as long as it lives.
class ParentsAddress {
 public:
  /// "tcp://127.0.0.1:7070", "tcp://[::1]:7070", "tcp://*:7070" (any interface), "ipc://" and a path; others name
  /// nothing.
  static ParentsAddress of(const std::string& endpoint);
  ParentsAddress(ParentsAddress&& other) noexcept : id_(std::exchange(other.id_, 0)), mark_(other.mark_) {}
  ParentsAddress& operator=(ParentsAddress&&) = delete;
  ~ParentsAddress();

 private:
  explicit ParentsAddress(std::uint64_t id) : id_(id) {}
  std::uint64_t id_ = 0;
  ForkMark mark_;
};

}  // namespace freshet
