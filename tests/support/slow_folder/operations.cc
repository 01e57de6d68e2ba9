// SPDX-License-Identifier: Apache-2.0
#define FUSE_USE_VERSION 312
#include "tests/support/slow_folder/operations.h"

#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace freshet::slow {
namespace {

constexpr double kRememberedSeconds = 1e6;
constexpr std::size_t kPieceMax = std::size_t{1} << 20;
constexpr unsigned kSideBySide = 64;

SlowFs& fs_of(fuse_req_t request) { return *static_cast<SlowFs*>(fuse_req_userdata(request)); }
double remembered_for(const SlowFs& fs) { return fs.cached ? kRememberedSeconds : 0; }

/// Counts the operation, lets its time pass, and answers an error where one was asked for: then the caller is done.
bool fails(fuse_req_t request, Counter counter, const char* operation, fuse_ino_t node, const char* name = nullptr,
           std::uint64_t bytes = 0) {
  SlowFs& fs = fs_of(request);
  ++fs.counters[counter];
  fs.pace.spend(bytes);
  if (!fs.faults.any()) return false;
  std::string path = fs.backing.shown_path(node);
  if (name != nullptr) path += (path.empty() ? "" : "/") + std::string(name);
  const int error = fs.faults.error_of(operation, path);
  if (error == kDies) ::kill(fuse_req_ctx(request)->pid, SIGKILL);
  if (error != 0) (void)fuse_reply_err(request, error == kDies ? EINTR : error);
  return error != 0;
}

void answer(fuse_req_t request, int result) { (void)fuse_reply_err(request, result == 0 ? 0 : errno); }

std::string path_of(fuse_req_t request, fuse_ino_t node) { return fs_of(request).backing.path_of(node); }

int find(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_entry_param& entry) {
  SlowFs& fs = fs_of(request);
  std::uint64_t node = 0;
  entry = {};
  const int error = fs.backing.look_up(parent, name, node, entry.attr);
  entry.ino = node;
  entry.attr_timeout = entry.entry_timeout = remembered_for(fs);
  return error;
}

/// Answers with what now has that name.
void answer_entry(fuse_req_t request, fuse_ino_t parent, const char* name) {
  fuse_entry_param entry;
  if (const int error = find(request, parent, name, entry); error != 0) {
    (void)fuse_reply_err(request, error);
  } else if (fuse_reply_entry(request, &entry) != 0) {
    fs_of(request).backing.forget(entry.ino, 1);
  }
}

void begin(void* /*data*/, fuse_conn_info* connection) {
  connection->max_background = kSideBySide;
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_SPLICE_READ);
}

void do_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (!fails(request, kLookups, "lookup", parent, name)) answer_entry(request, parent, name);
}

void do_forget(fuse_req_t request, fuse_ino_t node, std::uint64_t times) {
  fs_of(request).backing.forget(node, times);
  fuse_reply_none(request);
}

void answer_attributes(fuse_req_t request, fuse_ino_t node) {
  struct stat info {};
  if (::fstatat(fs_of(request).backing.descriptor_of(node), "", &info, AT_EMPTY_PATH) != 0) {
    return answer(request, -1);
  }
  (void)fuse_reply_attr(request, &info, remembered_for(fs_of(request)));
}

void do_getattr(fuse_req_t request, fuse_ino_t node, fuse_file_info* /*file*/) {
  if (!fails(request, kGetattrs, "getattr", node)) answer_attributes(request, node);
}

int set_attributes(fuse_req_t request, fuse_ino_t node, const struct stat& to, int which) {
  const std::string path = path_of(request, node);
  if ((which & FUSE_SET_ATTR_MODE) != 0 && ::chmod(path.c_str(), to.st_mode & 07777) != 0) return -1;
  if ((which & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0 &&
      ::chown(path.c_str(), (which & FUSE_SET_ATTR_UID) != 0 ? to.st_uid : static_cast<uid_t>(-1),
              (which & FUSE_SET_ATTR_GID) != 0 ? to.st_gid : static_cast<gid_t>(-1)) != 0) {
    return -1;
  }
  if ((which & FUSE_SET_ATTR_SIZE) != 0 && ::truncate(path.c_str(), to.st_size) != 0) return -1;
  timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  if ((which & FUSE_SET_ATTR_ATIME) != 0) times[0] = to.st_atim;
  if ((which & FUSE_SET_ATTR_MTIME) != 0) times[1] = to.st_mtim;
  if ((which & FUSE_SET_ATTR_ATIME_NOW) != 0) times[0].tv_nsec = UTIME_NOW;
  if ((which & FUSE_SET_ATTR_MTIME_NOW) != 0) times[1].tv_nsec = UTIME_NOW;
  return ::utimensat(AT_FDCWD, path.c_str(), times, 0);
}

void do_setattr(fuse_req_t request, fuse_ino_t node, struct stat* to, int which, fuse_file_info* /*file*/) {
  if (fails(request, kOthers, "setattr", node)) return;
  if (set_attributes(request, node, *to, which) != 0) return answer(request, -1);
  answer_attributes(request, node);
}

void do_readlink(fuse_req_t request, fuse_ino_t node) {
  if (fails(request, kOthers, "readlink", node)) return;
  char target[PATH_MAX];
  const ssize_t got = ::readlinkat(fs_of(request).backing.descriptor_of(node), "", target, sizeof target - 1);
  if (got < 0) return answer(request, -1);
  target[got] = '\0';
  (void)fuse_reply_readlink(request, target);
}

/// A new name in a folder, made by `make(folder)`, which belongs to who asked.
template <typename Make>
void make_entry(fuse_req_t request, const char* operation, fuse_ino_t parent, const char* name, Make make) {
  if (fails(request, kOthers, operation, parent, name)) return;
  const int folder = fs_of(request).backing.descriptor_of(parent);
  if (make(folder) != 0) return answer(request, -1);
  const fuse_ctx* who = fuse_req_ctx(request);
  if (who->uid != ::geteuid()) (void)!::fchownat(folder, name, who->uid, who->gid, AT_SYMLINK_NOFOLLOW);
  answer_entry(request, parent, name);
}

void do_mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  make_entry(request, "mknod", parent, name, [&](int folder) { return ::mknodat(folder, name, mode, device); });
}
void do_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  make_entry(request, "mkdir", parent, name, [&](int folder) { return ::mkdirat(folder, name, mode); });
}
void do_symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  make_entry(request, "symlink", parent, name, [&](int folder) { return ::symlinkat(target, folder, name); });
}
void do_link(fuse_req_t request, fuse_ino_t node, fuse_ino_t parent, const char* name) {
  if (fails(request, kOthers, "link", parent, name)) return;
  if (::linkat(AT_FDCWD, path_of(request, node).c_str(), fs_of(request).backing.descriptor_of(parent), name,
               AT_SYMLINK_FOLLOW) != 0) {
    return answer(request, -1);
  }
  answer_entry(request, parent, name);
}
void do_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (fails(request, kOthers, "unlink", parent, name)) return;
  answer(request, ::unlinkat(fs_of(request).backing.descriptor_of(parent), name, 0));
}
void do_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (fails(request, kOthers, "rmdir", parent, name)) return;
  answer(request, ::unlinkat(fs_of(request).backing.descriptor_of(parent), name, AT_REMOVEDIR));
}
void do_rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t to, const char* to_name,
               unsigned flags) {
  if (fails(request, kOthers, "rename", parent, name)) return;
  const Backing& backing = fs_of(request).backing;
  answer(request, ::renameat2(backing.descriptor_of(parent), name, backing.descriptor_of(to), to_name, flags));
}

void set_caching(fuse_req_t request, fuse_file_info& file) {
  file.keep_cache = fs_of(request).cached ? 1 : 0;
  file.direct_io = fs_of(request).cached ? 0 : 1;
}

void do_open(fuse_req_t request, fuse_ino_t node, fuse_file_info* file) {
  if (fails(request, kOpens, "open", node)) return;
  const int fd = ::open(path_of(request, node).c_str(), (file->flags & ~(O_NOFOLLOW | O_DIRECT)) | O_CLOEXEC);
  if (fd < 0) return answer(request, -1);
  file->fh = static_cast<std::uint64_t>(fd);
  set_caching(request, *file);
  if (fuse_reply_open(request, file) != 0) ::close(fd);
}

void do_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  if (fails(request, kOpens, "create", parent, name)) return;
  const int folder = fs_of(request).backing.descriptor_of(parent);
  const int fd = ::openat(folder, name, (file->flags & ~O_DIRECT) | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return answer(request, -1);
  const fuse_ctx* who = fuse_req_ctx(request);
  if (who->uid != ::geteuid()) (void)!::fchown(fd, who->uid, who->gid);
  file->fh = static_cast<std::uint64_t>(fd);
  set_caching(request, *file);
  fuse_entry_param entry;
  if (const int error = find(request, parent, name, entry); error != 0) {
    ::close(fd);
    (void)fuse_reply_err(request, error);
  } else if (fuse_reply_create(request, &entry, file) != 0) {
    ::close(fd);
    fs_of(request).backing.forget(entry.ino, 1);
  }
}

void do_read(fuse_req_t request, fuse_ino_t node, std::size_t bytes, off_t at, fuse_file_info* file) {
  SlowFs& fs = fs_of(request);
  bytes = std::min(bytes, kPieceMax);
  if (fs.faults.any()) {
    const std::uint64_t end = fs.faults.end_of(fs.backing.shown_path(node));
    const auto from = static_cast<std::uint64_t>(at);
    bytes = from >= end ? 0 : std::min<std::uint64_t>(bytes, end - from);
  }
  const auto room = std::make_unique<char[]>(bytes + 1);
  const ssize_t got = ::pread(static_cast<int>(file->fh), room.get(), bytes, at);
  const int error = errno;
  if (fails(request, kReads, "read", node, nullptr, got > 0 ? static_cast<std::uint64_t>(got) : 0)) return;
  if (got < 0) {
    errno = error;
    return answer(request, -1);
  }
  fs.counters[kBytes] += static_cast<std::uint64_t>(got);
  (void)fuse_reply_buf(request, room.get(), static_cast<std::size_t>(got));
}

void do_write(fuse_req_t request, fuse_ino_t node, const char* from, std::size_t bytes, off_t at,
              fuse_file_info* file) {
  if (fails(request, kWrites, "write", node, nullptr, bytes)) return;
  const ssize_t wrote = ::pwrite(static_cast<int>(file->fh), from, bytes, at);
  if (wrote < 0) return answer(request, -1);
  (void)fuse_reply_write(request, static_cast<std::size_t>(wrote));
}

void do_release(fuse_req_t request, fuse_ino_t /*node*/, fuse_file_info* file) {
  ::close(static_cast<int>(file->fh));
  (void)fuse_reply_err(request, 0);
}

void do_fsync(fuse_req_t request, fuse_ino_t node, int only_data, fuse_file_info* file) {
  if (fails(request, kOthers, "fsync", node)) return;
  const int fd = static_cast<int>(file->fh);
  answer(request, only_data != 0 ? ::fdatasync(fd) : ::fsync(fd));
}

void do_opendir(fuse_req_t request, fuse_ino_t node, fuse_file_info* file) {
  if (fails(request, kOthers, "opendir", node)) return;
  DIR* const folder = ::opendir(path_of(request, node).c_str());
  if (folder == nullptr) return answer(request, -1);
  file->fh = reinterpret_cast<std::uint64_t>(folder);
  if (fuse_reply_open(request, file) != 0) ::closedir(folder);
}

void do_readdir(fuse_req_t request, fuse_ino_t node, std::size_t room, off_t at, fuse_file_info* file) {
  if (fails(request, kOthers, "readdir", node)) return;
  DIR* const folder = reinterpret_cast<DIR*>(file->fh);
  ::seekdir(folder, at);
  const auto names = std::make_unique<char[]>(room);
  std::size_t used = 0;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    struct stat info {};
    info.st_ino = entry->d_ino;
    info.st_mode = static_cast<mode_t>(entry->d_type) << 12;
    const std::size_t size =
        fuse_add_direntry(request, names.get() + used, room - used, entry->d_name, &info, entry->d_off);
    if (size > room - used) break;
    used += size;
    errno = 0;
  }
  if (errno != 0 && used == 0) return answer(request, -1);
  (void)fuse_reply_buf(request, names.get(), used);
}

void do_releasedir(fuse_req_t request, fuse_ino_t /*node*/, fuse_file_info* file) {
  ::closedir(reinterpret_cast<DIR*>(file->fh));
  (void)fuse_reply_err(request, 0);
}

void do_fsyncdir(fuse_req_t request, fuse_ino_t node, int /*only_data*/, fuse_file_info* file) {
  if (fails(request, kOthers, "fsyncdir", node)) return;
  answer(request, ::fsync(::dirfd(reinterpret_cast<DIR*>(file->fh))));
}

void do_statfs(fuse_req_t request, fuse_ino_t node) {
  struct statvfs info {};
  if (::statvfs(path_of(request, node).c_str(), &info) != 0) return answer(request, -1);
  (void)fuse_reply_statfs(request, &info);
}

/// The kernel asks for attributes of its own at every write, which no file here has.
bool is_users(const char* name) { return std::strncmp(name, "user.", 5) == 0; }

void do_setxattr(fuse_req_t request, fuse_ino_t node, const char* name, const char* value, std::size_t bytes,
                 int flags) {
  if (!is_users(name)) return (void)fuse_reply_err(request, ENOTSUP);
  if (fails(request, kOthers, "setxattr", node)) return;
  answer(request, ::setxattr(path_of(request, node).c_str(), name, value, bytes, flags));
}
void do_getxattr(fuse_req_t request, fuse_ino_t node, const char* name, std::size_t room) {
  if (!is_users(name)) return (void)fuse_reply_err(request, ENODATA);
  if (fails(request, kOthers, "getxattr", node)) return;
  const auto value = std::make_unique<char[]>(room + 1);
  const ssize_t got = ::getxattr(path_of(request, node).c_str(), name, value.get(), room);
  if (got < 0) return answer(request, -1);
  if (room == 0) {
    (void)fuse_reply_xattr(request, static_cast<std::size_t>(got));
  } else {
    (void)fuse_reply_buf(request, value.get(), static_cast<std::size_t>(got));
  }
}
void do_listxattr(fuse_req_t request, fuse_ino_t node, std::size_t room) {
  if (fails(request, kOthers, "listxattr", node)) return;
  const auto names = std::make_unique<char[]>(room + 1);
  const ssize_t got = ::listxattr(path_of(request, node).c_str(), names.get(), room);
  if (got < 0) return answer(request, -1);
  if (room == 0) {
    (void)fuse_reply_xattr(request, static_cast<std::size_t>(got));
  } else {
    (void)fuse_reply_buf(request, names.get(), static_cast<std::size_t>(got));
  }
}
void do_removexattr(fuse_req_t request, fuse_ino_t node, const char* name) {
  if (fails(request, kOthers, "removexattr", node)) return;
  answer(request, ::removexattr(path_of(request, node).c_str(), name));
}

}  // namespace

const fuse_lowlevel_ops& operations() {
  static const fuse_lowlevel_ops all = [] {
    fuse_lowlevel_ops ops{};
    ops.init = begin;
    ops.lookup = do_lookup;
    ops.forget = do_forget;
    ops.getattr = do_getattr;
    ops.setattr = do_setattr;
    ops.readlink = do_readlink;
    ops.mknod = do_mknod;
    ops.mkdir = do_mkdir;
    ops.symlink = do_symlink;
    ops.link = do_link;
    ops.unlink = do_unlink;
    ops.rmdir = do_rmdir;
    ops.rename = do_rename;
    ops.open = do_open;
    ops.create = do_create;
    ops.read = do_read;
    ops.write = do_write;
    ops.release = do_release;
    ops.fsync = do_fsync;
    ops.opendir = do_opendir;
    ops.readdir = do_readdir;
    ops.releasedir = do_releasedir;
    ops.fsyncdir = do_fsyncdir;
    ops.statfs = do_statfs;
    ops.setxattr = do_setxattr;
    ops.getxattr = do_getxattr;
    ops.listxattr = do_listxattr;
    ops.removexattr = do_removexattr;
    return ops;
  }();
  return all;
}

}  // namespace freshet::slow
