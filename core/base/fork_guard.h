// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A fork guard closes resources in forked children. A child has a copy of every descriptor. So a lock, a port or
/// memory would live on in a forked data loader after the end of the process that made it. Each child closes the
/// resources that are registered here before fork() returns in it (pthread_atfork). Children made by vfork(),
/// posix_spawn() or exec need no guard: everything is close-on-exec. The guard does not see a child made by a bare
/// clone().

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet {

namespace fork_detail {
extern std::atomic<std::uint64_t> generation;  ///< Grows in each child.
}

/// Tells a process from the children that it forks. Immutable.
class ForkMark {
 public:
  /// True: this copy was made by a parent of this process. Its threads do not run here, and its shared resources belong
  /// to the parent.
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
  /// A child that another thread forks between open() and this call keeps the descriptor, so call this at once.
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

/// The address of a socket that a library listens at. Children close every socket with this address: the listening one
/// and the accepted ones. Movable; registered as long as the object lives.
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
