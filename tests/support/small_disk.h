// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A file system of a given size in a folder of its own, so that a disk can really be full. Needs the right to mount.

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/support/temporary_folder.h"

namespace freshet {

class SmallDisk {
 public:
  explicit SmallDisk(std::uint64_t bytes) {
    const std::string options = "size=" + std::to_string(bytes);
    mounted_ = ::mount("freshet-test", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) reason_ = std::string("cannot mount a small disk: ") + std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  explicit operator bool() const { return mounted_; }
  const std::string& reason() const { return reason_; }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
  std::string reason_;
};

}  // namespace freshet
