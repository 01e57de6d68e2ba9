// SPDX-License-Identifier: Apache-2.0
// What tiers need of this machine.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/frame/output.h"
#include "bindings/cli/tier/supervise.h"
#include "bindings/cli/tier/tier.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

/// The folder, or the one above it that is there.
std::string nearest_folder(std::filesystem::path path) {
  std::error_code error;
  while (path.has_parent_path() && path != path.root_path() && !std::filesystem::is_directory(path, error))
    path = path.parent_path();
  return path.string();
}

/// What is wrong with a folder as a tier; "" when nothing is. Tried on a file without a name, which leaves nothing
/// behind.
std::string why_no_tier(const tier::TierConfig& tier) {
  const std::string folder = nearest_folder(tier.path);
  const FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file && errno != EOPNOTSUPP) return format("{}: {}", folder, std::generic_category().message(errno));
  if (file && ::fsetxattr(file.get(), tier::kNoteAttribute, "x", 1, 0) != 0)
    return format("{}: its file system has no extended attributes of users ({})", folder,
                  std::generic_category().message(errno));
  struct statvfs room {};
  if (::statvfs(folder.c_str(), &room) != 0) return format("{}: {}", folder, std::generic_category().message(errno));
  std::uint64_t used = 0;
  (void)tier::each_copy(tier.path, [&](const tier::Identity&, std::uint64_t bytes, bool) { used += bytes; });
  const std::uint64_t free_bytes = std::uint64_t{room.f_bavail} * room.f_frsize;
  if (used + free_bytes < tier.quota_bytes) {
    return format("{}: room for {}, and a quota of {}", tier.path, human_bytes(used + free_bytes),
                  human_bytes(tier.quota_bytes));
  }
  return "";
}

}  // namespace

Finding find_tier_reader() {
  const Finding finding{.check = "tier_reader", .enables = "training data from the fast disk (freshet tier run)"};
  const Result<std::string> library = reader_library();
  struct statvfs room {};
  const bool has_memory = ::statvfs("/dev/shm", &room) == 0;
  const std::uint64_t free_bytes = has_memory ? std::uint64_t{room.f_bavail} * room.f_frsize : 0;
  if (!library) {
    return finding.with(Health::missing, library.error().message(), "cmake --install BUILD --component programs");
  }
  if (free_bytes >= sizeof(tier::Board)) return finding.with(Health::ok, *library);
  return finding.with(Health::missing,
                      format("/dev/shm has {} free; the tiers of a config need {}", human_bytes(free_bytes),
                             human_bytes(sizeof(tier::Board))),
                      "mount -o remount,size=N /dev/shm (docker: --shm-size)");
}

Finding find_tier_kernel() {
  Finding finding{.check = "tier_kernel",
                  .enables = "static programs, locks of duplicates, the slow folder of the proof"};
  const pid_t self = ::getpid();
  constexpr int kCompareFiles = 0;  // KCMP_FILE
  const std::pair<bool, const char*> asked[] = {
      {can_supervise(), "freshet tier run --via seccomp"},
      {::syscall(SYS_kcmp, self, self, kCompareFiles, 0, 0) == 0, "kcmp"},
      {::access("/dev/fuse", R_OK | W_OK) == 0, "FUSE"},
  };
  for (const bool works : {true, false}) {
    std::string names;
    for (const auto& [answer, name] : asked)
      names += answer == works ? (names.empty() ? "" : ", ") + std::string(name) : "";
    if (!names.empty())
      finding.found += (finding.found.empty() ? "" : "; ") + names + (works ? ": works" : ": does not work");
    if (!works && !names.empty()) {
      finding.health = Health::limited;
      finding.get = "Linux 5.14, a container that allows seccomp and kcmp, /dev/fuse";
    }
  }
  return finding;
}

Finding find_tiers() {
  const Finding finding{.check = "tiers", .enables = "the tiers of FRESHET_TIER"};
  const char* file = std::getenv("FRESHET_TIER");
  if (file == nullptr || *file == '\0') {
    return finding.with(Health::limited, "no config is named", "FRESHET_TIER=tiers.toml (docs/tiering.md)");
  }
  const Result<tier::Config> config = tier::read_config(file);
  if (!config) return finding.with(Health::missing, config.error().message());
  std::string faults;
  for (const tier::TierConfig& tier : config->tiers) {
    const std::string why = why_no_tier(tier);
    if (!why.empty()) faults += (faults.empty() ? "" : "; ") + why;
  }
  if (!faults.empty()) {
    return finding.with(Health::limited, faults, "a folder on ext4, XFS, btrfs or tmpfs with room for the quota");
  }
  return finding.with(
      Health::ok, format("{} source{}, {} tier{}, {}", config->sources.size(), config->sources.size() == 1 ? "" : "s",
                         config->tiers.size(), config->tiers.size() == 1 ? "" : "s",
                         tier::KeeperLine::connect(*config) ? "a keeper runs" : "no keeper runs"));
}

}  // namespace freshet::cli
