// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/tier_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "repo/tier/board.h"
#include "repo/tier/path_links.h"

namespace freshet::tier {
namespace {

constexpr long kXfsMagic = 0x58465342;  // Not in every <linux/magic.h>.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

struct FolderCloser {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, FolderCloser>;

bool is_two_digits(const char* name) {
  std::uint64_t value = 0;
  const char* at = name;
  return std::strlen(name) == 2 && take_hex(at, value, 2);
}

std::string system_reason(std::string_view what) { return fail_errno(errno, what).value().message(); }

/// A file that goes when it is not kept.
class AsideFile {
 public:
  AsideFile(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {}
  ~AsideFile() {
    if (fd_ && !kept_) (void)::unlink(path_.c_str());
  }
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  FileDescriptor fd_;
  bool kept_ = false;
};

bool is_hole(const std::byte* bytes, std::size_t count) {
  // Each byte equals the one before it, and the first is zero.
  return bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

bool set_note(int fd, const CopyNote& note, const std::string& path) {
  std::string value(sizeof note, '\0');
  std::memcpy(value.data(), &note, sizeof note);
  const std::string whole = value + path;
  if (::fsetxattr(fd, kNoteAttribute, whole.data(), whole.size(), 0) == 0) return true;
  // A long path may not fit; without it the copy is as good, and its note cannot name the source.
  return errno != ENOTSUP && ::fsetxattr(fd, kNoteAttribute, value.data(), value.size(), 0) == 0;
}

/// File systems of this host's kernel that are known to tell about writers and holes as they are.
bool is_known_here(int fd) {
  struct statfs where {};
  if (::fstatfs(fd, &where) != 0) return false;
  switch (where.f_type) {
    case EXT4_SUPER_MAGIC:
    case kXfsMagic:
    case BTRFS_SUPER_MAGIC:
    case TMPFS_MAGIC: return true;
    default: return false;
  }
}

/// Somebody on this host has it open, or mapped, for writing: then its times are no witness, since a write sets them as
/// it begins, and a mapping when a page first gets dirty. Asked where a lease tells just that; a network's file system
/// may refuse one for other reasons, and knows no writers elsewhere.
bool has_writer(int fd) {
  if (!is_known_here(fd)) return false;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN;
  (void)::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

/// Whether the disk has room for it, as far as it tells.
bool has_room_for(const std::string& tier, std::uint64_t bytes) {
  struct statvfs room {};
  return ::statvfs(tier.c_str(), &room) != 0 || std::uint64_t{room.f_bavail} * room.f_frsize >= bytes;
}

/// Whether the inode that was copied is as it was. What has its name by now is another matter: a copy is named by the
/// inode. The server is asked, past the mount's cache of attributes.
bool is_unchanged(const OpenSource& source) {
  struct statx seen {};
  if (::statx(source.fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &seen) != 0) return false;
  const Identity now{.source = source.identity.source,
                     .inode = seen.stx_ino,
                     .size = seen.stx_size,
                     .mtime = seen.stx_mtime.tv_sec,
                     .ctime = seen.stx_ctime.tv_sec,
                     .mtime_ns = seen.stx_mtime.tv_nsec,
                     .ctime_ns = seen.stx_ctime.tv_nsec};
  return now == source.identity;
}

/// Where the next data of a sparse file is.
std::uint64_t data_from(const OpenSource& source, std::uint64_t at) {
  const off_t data = ::lseek(source.fd, static_cast<off_t>(at), SEEK_DATA);
  if (data >= 0) return std::min(static_cast<std::uint64_t>(data), source.identity.size);
  return errno == ENXIO ? source.identity.size : at;
}

/// Zeros that need not be read.
void add_zeros(PlainXxh3Stream& digest, std::uint64_t count) {
  static const std::byte zeros[64 * 1024] = {};
  for (; count > 0; count -= std::min<std::uint64_t>(count, sizeof zeros)) {
    digest.update(Bytes(zeros, std::min<std::uint64_t>(count, sizeof zeros)));
  }
}

/// Reads the source to its end into `file`. Digests what it reads.
CopyEnd transfer(const OpenSource& source, int file, PlainXxh3Stream& digest, const std::atomic<bool>& stop) {
  CopyEnd end;
  const std::uint64_t size = source.identity.size;
  const bool has_holes = source.note.blocks < size / 512 && is_known_here(source.fd);
  const std::size_t room = std::clamp<std::uint64_t>(size, 1, kPieceBytes);
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(room);
  // That it has no more than its size is seen when it is looked at again. Where it says that it has nothing, a read
  // tells.
  for (std::uint64_t at = 0; at < size || size == 0;) {
    if (stop.load()) return {CopyEnd::Kind::stopped, "", end.read_bytes};
    const std::uint64_t data = has_holes ? data_from(source, at) : at;
    add_zeros(digest, data - at);
    // What is a hole, or zero, stays a hole.
    if (data > at && ::lseek(file, static_cast<off_t>(data), SEEK_SET) < 0) {
      return {CopyEnd::Kind::tier_failed, system_reason("write a copy"), end.read_bytes};
    }
    at = data;
    if (at == size && size > 0) break;
    const ssize_t got = ::pread(source.fd, piece.get(), room, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {CopyEnd::Kind::source_failed, system_reason(format("read {}", source.path)), end.read_bytes};
    if (got == 0) return {size == 0 ? CopyEnd::Kind::made : CopyEnd::Kind::changed, "", end.read_bytes};
    const auto bytes = static_cast<std::size_t>(got);
    at += bytes;
    end.read_bytes += bytes;
    if (at > size) return {CopyEnd::Kind::changed, "", end.read_bytes};
    digest.update(Bytes(piece.get(), bytes));
    Status wrote;
    if (!is_hole(piece.get(), bytes)) {
      wrote = write_all(file, Bytes(piece.get(), bytes), "a copy");
    } else if (::lseek(file, got, SEEK_CUR) < 0) {
      wrote = fail_errno(errno, "write a copy");
    }
    if (!wrote) return {CopyEnd::Kind::tier_failed, wrote.error().message(), end.read_bytes};
  }
  return end;
}

/// The copy's own attributes: what the reader checks before it believes the name.
bool describe_file(int file, const OpenSource& source, const Digest& digest) {
  CopyNote note = source.note;
  note.digest_low = digest.low;
  note.digest_high = digest.high;
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = source.identity.mtime, .tv_nsec = static_cast<long>(source.identity.mtime_ns)}};
  struct stat described {};
  if (::ftruncate(file, static_cast<off_t>(source.identity.size)) != 0 || !set_note(file, note, source.path) ||
      ::fchmod(file, kCopyMode) != 0 || ::futimens(file, times) != 0 || ::fstat(file, &described) != 0) {
    return false;
  }
  if (described.st_mode == (S_IFREG | kCopyMode)) return true;
  errno = ENOTSUP;  // A file system without modes: the reader takes no copy there.
  return false;
}

bool read_copy_note(int fd, CopyNote& note, std::string& path) {
  std::string value(sizeof note + kPathRoom, '\0');
  const ssize_t got = ::fgetxattr(fd, kNoteAttribute, value.data(), value.size());
  if (got < static_cast<ssize_t>(sizeof note)) return false;
  std::memcpy(&note, value.data(), sizeof note);
  if (note.magic != kNoteMagic) return false;
  path = value.substr(sizeof note, static_cast<std::size_t>(got) - sizeof note);
  return true;
}

}  // namespace

Status each_name(const std::string& path, const std::function<void(const char*)>& each) {
  const Folder folder(::opendir(path.c_str()));
  if (!folder) return fail_errno(errno, format("list {}", path));
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    each(entry->d_name);
  }
  if (errno != 0) return fail_errno(errno, format("list {}", path));
  return {};
}

Status check_own_tier(const std::string& tier) {
  struct stat info {};
  if (::stat(tier.c_str(), &info) != 0) return fail_errno(errno, format("look at {}", tier));
  if (is_own_folder(info, ::geteuid())) return {};
  if (!S_ISDIR(info.st_mode)) return fail_errno(ENOTDIR, format("look at {}", tier));
  if (info.st_uid != ::geteuid()) return fail(Code::failed_precondition, format("{} belongs to another user", tier));
  return fail(Code::failed_precondition, format("others may write to {}: chmod go-w it", tier));
}

Status prepare_tier(const std::string& tier) {
  for (std::size_t end = tier.find('/', 1);; end = tier.find('/', end + 1)) {
    const std::string folder = tier.substr(0, end);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      // A folder above it may be none of ours to make, and be there all the same.
      struct stat info {};
      const int error = errno;
      if (::stat(folder.c_str(), &info) != 0) return fail_errno(error, format("make {}", folder));
    }
    if (end == std::string::npos) break;
  }
  return check_own_tier(tier);
}

Status sweep_tier(const std::string& tier) {
  std::vector<std::string> left;
  FRESHET_TRY(each_name(tier, [&](const char* name) {
    const std::string_view text(name);
    const bool is_own = text.starts_with(kOwnPrefix);
    if (is_own && (text.starts_with(std::string(kOwnPrefix) + "copy-") || text.ends_with(".tmp"))) {
      left.push_back(tier + "/" + name);
    }
  }));
  for (const std::string& path : left) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno(errno, format("remove {}", path));
  }
  return {};
}

Status each_copy(const std::string& tier, const EachCopy& each) {
  FRESHET_TRY(check_own_tier(tier));
  std::vector<std::string> folders;
  FRESHET_TRY(each_name(tier, [&](const char* name) {
    if (is_two_digits(name)) folders.push_back(tier + "/" + name);
  }));
  for (const std::string& folder : folders) {
    FRESHET_TRY(each_name(folder, [&](const char* name) {
      Identity identity;
      struct stat info {};
      if (std::strlen(name) != kNameBytes || !take_name(name, identity)) return;
      if (::lstat((folder + "/" + name).c_str(), &info) != 0) return;
      const bool sound = S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) == identity.size;
      each(identity, S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : 0, sound);
    }));
  }
  return {};
}

std::string copy_path(const std::string& tier, const Identity& identity) {
  char name[kCopyPathBytes];
  char* end = put_copy_path(name, identity);
  return tier + "/" + std::string(name, end);
}

CopyEnd make_copy(const OpenSource& source, const std::string& tier, std::uint64_t aside, const std::atomic<bool>& stop,
                  const std::function<void()>& written) {
  // Nothing is read at the source for a copy that cannot be written.
  if (!has_room_for(tier, source.identity.size))
    return {CopyEnd::Kind::tier_failed, format("{}: the disk has no room for {} bytes", tier, source.identity.size), 0};
  if (has_writer(source.fd)) return {CopyEnd::Kind::changed, "", 0};
  AsideFile file(format("{}/{}copy-{}-{}", tier, kOwnPrefix, ::getpid(), aside));
  if (file.fd() < 0) return {CopyEnd::Kind::tier_failed, system_reason(format("make a file in {}", tier)), 0};
  PlainXxh3Stream digest;
  CopyEnd end = transfer(source, file.fd(), digest, stop);
  if (end.kind == CopyEnd::Kind::tier_failed) end.reason = format("{}: {}", tier, end.reason);
  if (end.kind != CopyEnd::Kind::made) return end;
  const bool described = describe_file(file.fd(), source, digest.finish());
  if (described) written();
  // Many of these come at once, so that the file system syncs them together.
  if (!described || ::fsync(file.fd()) != 0) {
    return {CopyEnd::Kind::tier_failed, system_reason(format("finish a copy in {}", tier)), end.read_bytes};
  }
  if (has_writer(source.fd) || !is_unchanged(source)) return {CopyEnd::Kind::changed, "", end.read_bytes};
  const std::string path = copy_path(tier, source.identity);
  const std::string folder = path.substr(0, path.rfind('/'));
  (void)::mkdir(folder.c_str(), 0700);
  if (::rename(file.path().c_str(), path.c_str()) != 0) {
    return {CopyEnd::Kind::tier_failed, system_reason(format("rename a copy to {}", path)), end.read_bytes};
  }
  // The name itself is not synced: a host that dies may lose it, and with it a copy, but has no name without its bytes.
  file.keep();
  return end;
}

CopyCheck check_copy(const std::string& tier, const Identity& identity, const GoesOn& goes_on) {
  CopyCheck check;
  const std::string path = copy_path(tier, identity);
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  FileDescriptor fd(goes_on ? ::open(path.c_str(), flags | O_DIRECT) : -1);
  if (!fd) fd = FileDescriptor(::open(path.c_str(), flags));
  struct stat info {};
  CopyNote note;
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || !read_copy_note(fd.get(), note, check.source))
    return check;
  PlainXxh3Stream digest;
  // Reads past the cache want memory at a page's beginning.
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, kPieceBytes), std::free);
  auto* const piece = static_cast<std::byte*>(memory.get());
  for (;;) {
    const ssize_t got = piece == nullptr ? -1 : ::read(fd.get(), piece, kPieceBytes);
    if (got < 0) return check;
    if (got == 0) break;
    check.bytes += static_cast<std::uint64_t>(got);
    digest.update(Bytes(piece, static_cast<std::size_t>(got)));
    if (goes_on && !goes_on(static_cast<std::uint64_t>(got))) return check;
  }
  check.was_read = true;
  check.good = check.bytes == identity.size && digest.finish() == Digest{note.digest_low, note.digest_high};
  return check;
}

Status remove_copy(const std::string& tier, const Identity& identity) {
  const std::string source = source_of_copy(tier, identity);
  const std::string path = copy_path(tier, identity);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno(errno, format("remove {}", path));
  unlink_path(tier, source, identity);
  return {};
}

std::string source_of_copy(const std::string& tier, const Identity& identity) {
  const FileDescriptor fd(::open(copy_path(tier, identity).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  CopyNote note;
  std::string path;
  return fd && read_copy_note(fd.get(), note, path) ? path : "";
}

}  // namespace freshet::tier
