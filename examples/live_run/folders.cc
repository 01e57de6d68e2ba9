// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "core/base/format.h"

namespace freshet::live {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarker = ".live_run";
constexpr const char* kDefaultName = "live_run_report";
constexpr int kDefaultsMax = 100;
constexpr std::size_t kTemporaryBytesMax = 60;  ///< Socket addresses below it must stay under 108 bytes.

}  // namespace

Result<ReportFolder> ReportFolder::open(const std::string& wanted) {
  if (!wanted.empty()) return open_at(wanted);
  for (int i = 1; i <= kDefaultsMax; ++i) {
    Result<ReportFolder> folder = open_at(i == 1 ? kDefaultName : format("{}-{}", kDefaultName, i));
    if (folder || folder.error().code() != Code::unavailable) return folder;
  }
  return fail(Code::unavailable, format("report folder {}: too many runs are using such folders", kDefaultName));
}

Result<ReportFolder> ReportFolder::open_at(const std::string& wanted) {
  std::error_code error;
  const std::string path = fs::absolute(wanted, error).lexically_normal().string();
  fs::create_directories(path, error);
  if (error) return fail(Code::io_error, format("report folder {}: {}", wanted, error.message()));
  const std::string marker = path + "/" + kMarker;
  if (!fs::exists(marker, error) && !fs::is_empty(path, error)) {
    return fail(Code::failed_precondition,
                format("report folder {}: holds something else; name an empty or a new one with --report", wanted));
  }
  const int lock = ::open(marker.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return fail_errno(errno, format("report folder {}", wanted));
  ReportFolder folder(path, lock);
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return fail(Code::unavailable, format("report folder {}: another run uses it", wanted));
  }
  for (const char* name :
       {"repository", "summary.json", "loss.svg", "latency.svg", "bytes.svg", "loss.gp", "latency.gp", "bytes.gp"}) {
    fs::remove_all(path + "/" + name, error);
    if (error) return fail(Code::io_error, format("report folder {}: {}", wanted, error.message()));
  }
  return folder;
}

ReportFolder::ReportFolder(ReportFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

ReportFolder::~ReportFolder() {
  if (lock_ >= 0) ::close(lock_);
}

Result<RunFolder> RunFolder::create() {
  const char* named = std::getenv("TMPDIR");
  const std::string base =
      named != nullptr && *named == '/' && std::string(named).size() <= kTemporaryBytesMax ? named : "/tmp";
  std::string path = base + "/freshet-live-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail_errno(errno, format("a folder in {}", base));
  return RunFolder(std::move(path));
}

RunFolder::~RunFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

}  // namespace freshet::live
