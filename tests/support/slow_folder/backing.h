// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The folder that is shown, as nodes: what the kernel knows of it by number. A node is one inode of the backing
/// folder, held by a descriptor without access, so that names may change beside it.

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"

namespace freshet::slow {

struct Node {
  FileDescriptor fd;
  std::uint64_t known = 0;  ///< How often the kernel was told of it, less what it forgot.
  std::uint64_t parent = 0;
  std::string name;  ///< By which it was last found, in `parent`.
};

/// Where the kernel may remember something: a node, and its name in a folder (parent 0 for the root).
struct Remembered {
  std::uint64_t node = 0;
  std::uint64_t parent = 0;
  std::string name;
};

/// Any thread. Numbers are those of the kernel: 1 is the root.
class Backing {
 public:
  /// `root` is a folder's descriptor.
  explicit Backing(FileDescriptor root);

  /// A name for system calls that take paths: the node itself, whatever it is called. "" when there is no such node.
  std::string path_of(std::uint64_t node) const;
  /// Its descriptor, open for nothing but *at() calls; -1 when there is no such node.
  int descriptor_of(std::uint64_t node) const;
  /// Finds `name` in a folder and counts it as known. 0, or an errno.
  int look_up(std::uint64_t parent, const char* name, std::uint64_t& node, struct stat& info);
  void forget(std::uint64_t node, std::uint64_t times);
  /// The path below the root by which a node was last found; "" for the root.
  std::string shown_path(std::uint64_t node) const;
  std::vector<Remembered> remembered() const;

 private:
  using Inode = std::pair<std::uint64_t, std::uint64_t>;  // Device and number.

  std::string shown_path_locked(std::uint64_t node) const FRESHET_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint64_t, Node> nodes_ FRESHET_GUARDED_BY(mutex_);
  std::map<Inode, std::uint64_t> numbers_ FRESHET_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Inode> inodes_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t last_ FRESHET_GUARDED_BY(mutex_) = 1;
};

}  // namespace freshet::slow
