// SPDX-License-Identifier: Apache-2.0
#include "core/base/env.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "core/base/check.h"
#include "core/base/file_io.h"
#include "core/base/format.h"

namespace freshet {
namespace {

/// So much is appended before the medium is given it. More would let the medium wait, less would cost system calls.
constexpr std::size_t kWriteBackBytes = std::size_t{8} << 20;

class SystemFile final : public WritableFile {
 public:
  SystemFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~SystemFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status append(Bytes bytes) override {
    while (!bytes.empty()) {
      const Bytes piece = bytes.first(expects_sync_ ? std::min(bytes.size(), kWriteBackBytes) : bytes.size());
      FRESHET_TRY(write_all(descriptor_, piece, path_));
      bytes = bytes.subspan(piece.size());
      appended_ += static_cast<off64_t>(piece.size());
      if (expects_sync_) write_back();
    }
    return {};
  }

  void expect_sync() override { expects_sync_ = true; }

  Status sync() override {
    if (::fsync(descriptor_) != 0) return fail_errno(errno, format("sync {}", path_));
    return {};
  }

  Status close() override {
    // Linux closes the descriptor even when it reports an error, so it must not be closed again.
    if (::close(std::exchange(descriptor_, -1)) != 0) return fail_errno(errno, format("close {}", path_));
    return {};
  }

 private:
  // Best effort: sync() tells what went wrong.
  void write_back() {
    if (appended_ - given_ < static_cast<off64_t>(kWriteBackBytes)) return;
    ::sync_file_range(descriptor_, given_, appended_ - given_, SYNC_FILE_RANGE_WRITE);
    given_ = appended_;
  }

  int descriptor_;
  const std::string path_;
  bool expects_sync_ = false;
  off64_t appended_ = 0;
  off64_t given_ = 0;  ///< To the medium.
};

class SystemEnv final : public Env {
 public:
  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0) return fail_errno(errno, format("create {}", path));
    return std::make_unique<SystemFile>(descriptor, path);
  }

  Status rename_file(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return fail_errno(errno, format("rename {} to {}", from, to));
    return {};
  }

  Status remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return fail_errno(errno, format("remove {}", path));
    return {};
  }

  Status sync_folder(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return fail_errno(errno, format("open folder {}", path));
    const int result = ::fsync(descriptor);
    const int error = errno;
    ::close(descriptor);
    if (result != 0) return fail_errno(error, format("sync folder {}", path));
    return {};
  }

  void fill_random(MutableBytes out) override {
    while (!out.empty()) {
      const ssize_t filled = ::getrandom(out.data(), out.size(), 0);
      if (filled < 0 && errno == EINTR) continue;
      FRESHET_CHECK(filled > 0);
      out = out.subspan(static_cast<std::size_t>(filled));
    }
  }

  std::optional<std::string> variable(const std::string& name) const override {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  }
};

/// The file that `path` means: where a link leads, so that the link stays. A device, a pipe or a folder is none, and
/// must not become one.
Result<std::string> file_to_replace(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::canonical(path, error);
  if (error) return fail(Code::invalid_argument, format("{}: the link leads nowhere", path));
  if (!fs::is_regular_file(target, error)) {
    return fail(Code::invalid_argument, format("{} is not a regular file, so it is not replaced", path));
  }
  return fs::is_symlink(path, error) ? target.string() : path;
}

}  // namespace

Env& system_env() {
  static SystemEnv env;
  return env;
}

Status replace_file(Env& env, const std::string& path, const std::string& aside,
                    const std::function<Status(WritableFile&)>& write, bool sync) {
  const auto write_and_rename = [&]() -> Status {
    FRESHET_ASSIGN(const std::unique_ptr<WritableFile> file, env.create_file(aside));
    if (sync) file->expect_sync();
    Status status = write(*file);
    if (status && sync) status = file->sync();
    if (status) status = file->close();
    if (status) status = env.rename_file(aside, path);
    if (!status) static_cast<void>(env.remove_file(aside));  // The first error is the one to tell.
    return status;
  };
  FRESHET_TRY(write_and_rename());
  return sync ? env.sync_folder(folder_of(path)) : Status();
}

Status write_file_atomically(Env& env, const std::string& named, std::span<const Bytes> pieces, bool sync) {
  FRESHET_ASSIGN(const std::string path, file_to_replace(named));
  const auto write = [pieces](WritableFile& file) {
    Status status;
    for (const Bytes piece : pieces) {
      if (status) status = file.append(piece);
    }
    return status;
  };
  return replace_file(env, path, format("{}.{:016x}.tmp", path, random_u64(env)), write, sync);
}

std::uint64_t random_u64(Env& env) {
  std::uint64_t value = 0;
  env.fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace freshet
