// SPDX-License-Identifier: Apache-2.0
#include "tests/support/slow_folder/backing.h"

#include <fcntl.h>

#include <cerrno>

#include "core/base/format.h"

namespace freshet::slow {
namespace {

constexpr std::uint64_t kRoot = 1;

}  // namespace

Backing::Backing(FileDescriptor root) {
  const MutexLock lock(mutex_);
  Node& node = nodes_[kRoot];
  node.fd = std::move(root);
  node.known = 1;
}

std::string Backing::path_of(std::uint64_t node) const {
  const int fd = descriptor_of(node);
  return fd < 0 ? "" : format("/proc/self/fd/{}", fd);
}

int Backing::descriptor_of(std::uint64_t node) const {
  const MutexLock lock(mutex_);
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? -1 : found->second.fd.get();
}

int Backing::look_up(std::uint64_t parent, const char* name, std::uint64_t& node, struct stat& info) {
  const int folder = descriptor_of(parent);
  if (folder < 0) return ENOENT;
  FileDescriptor fd(::openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::fstat(fd.get(), &info) != 0) return errno;
  const MutexLock lock(mutex_);
  const Inode inode{info.st_dev, info.st_ino};
  auto [number, is_new] = numbers_.try_emplace(inode, last_ + 1);
  if (is_new) {
    ++last_;
    inodes_[last_] = inode;
    nodes_[last_].fd = std::move(fd);
  }
  node = number->second;
  Node& found = nodes_[node];
  ++found.known;
  found.parent = parent;
  found.name = name;
  return 0;
}

void Backing::forget(std::uint64_t node, std::uint64_t times) {
  const MutexLock lock(mutex_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || node == kRoot) return;
  found->second.known -= times < found->second.known ? times : found->second.known;
  if (found->second.known > 0) return;
  numbers_.erase(inodes_[node]);
  inodes_.erase(node);
  nodes_.erase(found);
}

std::string Backing::shown_path_locked(std::uint64_t node) const {
  std::string path;
  while (node != kRoot) {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) break;
    path = path.empty() ? found->second.name : found->second.name + "/" + path;
    node = found->second.parent;
  }
  return path;
}

std::string Backing::shown_path(std::uint64_t node) const {
  const MutexLock lock(mutex_);
  return shown_path_locked(node);
}

std::vector<Remembered> Backing::remembered() const {
  const MutexLock lock(mutex_);
  std::vector<Remembered> all;
  for (const auto& [number, node] : nodes_) all.push_back({.node = number, .parent = node.parent, .name = node.name});
  return all;
}

}  // namespace freshet::slow
