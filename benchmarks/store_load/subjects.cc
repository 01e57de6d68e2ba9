// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/store_load/subjects.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

class Copy final : public Subject {
 public:
  explicit Copy(const Model& model) {
    for (const std::uint64_t bytes : model.sizes()) kept_.emplace_back(bytes, std::byte{1});
  }
  Result<double> store(const Model& model, std::span<const std::uint32_t> changed) override {
    Status status;
    return milliseconds_of(
        [&]() -> Status {
          for (const std::uint32_t i : changed) std::memcpy(kept_[i].data(), model.tensor(i).data(), kept_[i].size());
          return {};
        },
        status);
  }
  Result<double> load(Model& model, std::span<const std::uint32_t> tensors) override {
    const auto reads = model.reads(tensors);
    Status status;
    return milliseconds_of(
        [&]() -> Status {
          for (const auto& read : reads) std::memcpy(read.out.data(), kept_[read.tensor].data(), read.out.size());
          return {};
        },
        status);
  }

 private:
  std::vector<std::vector<std::byte>> kept_;
};

class File final : public Subject {
 public:
  explicit File(std::string folder) : folder_(std::move(folder)) {}

  Result<double> store(const Model& model, std::span<const std::uint32_t> changed) override {
    // A disk may write what it wrote before in a fraction of the time, and a repository keeps its versions: so do
    // files.
    std::error_code ignored;
    if (!path_.empty() && !has_room(6 * model.bytes())) std::filesystem::remove(path_, ignored);
    sync_folder();
    path_ = format("{}/file-{}", folder_, ++count_);
    Status status;
    const double time = milliseconds_of([&] { return write(model, changed); }, status);
    FRESHET_TRY(status);
    return time;
  }

  Result<double> load(Model& model, std::span<const std::uint32_t> tensors) override {
    const auto reads = model.reads(tensors);
    forget_pages(folder_);
    Status status;
    const double time = milliseconds_of([&] { return read(reads); }, status);
    FRESHET_TRY(status);
    return time;
  }

 private:
  bool has_room(std::uint64_t bytes) const {
    struct statvfs disk {};
    return ::statvfs(folder_.c_str(), &disk) == 0 && disk.f_bavail * disk.f_frsize >= bytes;
  }

  // What the file system still has to do for what was removed is not the next file's.
  void sync_folder() const {
    const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    ::syncfs(folder);
    ::close(folder);
  }

  Status write(const Model& model, std::span<const std::uint32_t> changed) const {
    const int file = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) return fail_errno(errno, path_);
    Status status;
    for (const std::uint32_t tensor : changed) {
      for (Bytes rest = model.tensor(tensor); !rest.empty() && status;) {
        const ssize_t written = ::write(file, rest.data(), std::min(rest.size(), kPieceBytes));
        if (written < 0) status = fail_errno(errno, path_);
        if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
      }
    }
    if (status && ::fsync(file) != 0) status = fail_errno(errno, path_);
    ::close(file);
    return status;
  }

  Status read(const std::vector<Repository::TensorRead>& reads) const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail_errno(errno, path_);
    Status status;
    for (const auto& wanted : reads) {
      for (MutableBytes rest = wanted.out; !rest.empty() && status;) {
        const ssize_t got = ::read(file, rest.data(), std::min(rest.size(), kPieceBytes));
        if (got < 0) status = fail_errno(errno, path_);
        if (got == 0) status = fail(Code::corrupt, path_ + " is too short");
        if (got > 0) rest = rest.subspan(static_cast<std::size_t>(got));
      }
    }
    ::close(file);
    return status;
  }

  const std::string folder_;
  std::string path_;
  int count_ = 0;
};

}  // namespace

double milliseconds_of(const std::function<Status()>& work, Status& status) {
  const auto started = std::chrono::steady_clock::now();
  status = work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
}

std::unique_ptr<Subject> make_copy(const Model& model) { return std::make_unique<Copy>(model); }
std::unique_ptr<Subject> make_file(const std::string& folder) { return std::make_unique<File>(folder); }

void forget_pages(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const int file = ::open(at->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

}  // namespace freshet::benchmarks
