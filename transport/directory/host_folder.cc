// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/format.h"

namespace freshet {
namespace {

Status make_private(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "create host directory " + path);
  return {};
}

}  // namespace

Result<std::shared_ptr<HostFolder>> HostFolder::open(std::string path) {
  FRESHET_TRY(make_private(path));
  FRESHET_ASSIGN(Descriptor descriptor, open_checked(path));
  return std::shared_ptr<HostFolder>(new HostFolder(std::move(path), std::move(descriptor)));
}

Result<HostFolder::Descriptor> HostFolder::open_checked(const std::string& path) {
  // The last component may not be a link: in a folder that others can write, it could lead anywhere.
  auto descriptor =
      std::make_shared<FileDescriptor>(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!*descriptor) return fail_errno(errno, "open host directory " + path);
  struct stat facts {};
  if (::fstat(descriptor->get(), &facts) != 0) return fail_errno(errno, "stat host directory " + path);
  if (facts.st_uid != ::geteuid()) {
    return fail(Code::failed_precondition, format("host directory {} belongs to another user", path));
  }
  if ((facts.st_mode & 077) != 0) {
    return fail(Code::failed_precondition,
                format("host directory {} is open to other users (chmod 700 closes it)", path));
  }
  // A cleaner that holds it just now does not remove a file this young; where locks are not known, nobody asks for one.
  (void)::flock(descriptor->get(), LOCK_SH | LOCK_NB);
  return Descriptor(std::move(descriptor));
}

bool HostFolder::is_at_path(const Descriptor& descriptor) const {
  struct stat held {};
  struct stat there {};
  return ::fstat(descriptor->get(), &held) == 0 && ::stat(path_.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

Result<HostFolder::Descriptor> HostFolder::look() {
  Descriptor held;
  {
    const MutexLock lock(mutex_);
    held = descriptor_;
  }
  if (is_at_path(held)) return held;
  FRESHET_ASSIGN(Descriptor found, open_checked(path_));
  const MutexLock lock(mutex_);
  // Another thread may have found the folder just now: claims in it know it by that descriptor.
  if (!is_at_path(descriptor_)) descriptor_ = std::move(found);
  return descriptor_;
}

HostFolder::Descriptor HostFolder::descriptor() {
  if (auto found = look()) return std::move(*found);
  const MutexLock lock(mutex_);
  return descriptor_;
}

Result<bool> HostFolder::make_again() {
  Descriptor before;
  {
    const MutexLock lock(mutex_);
    before = descriptor_;
  }
  if (is_at_path(before)) return false;
  FRESHET_TRY(make_private(path_));
  FRESHET_ASSIGN(const Descriptor found, look());
  return found != before;
}

}  // namespace freshet
