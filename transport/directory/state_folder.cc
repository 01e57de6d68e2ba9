// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/state_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet {
namespace {

std::filesystem::path state_folder_path() {
  const auto absolute = [](const char* variable) {
    const std::optional<std::string> text = system_env().variable(variable);
    // A relative path is to be ignored, says the specification.
    return text && text->starts_with('/') ? std::filesystem::path(*text) : std::filesystem::path();
  };
  if (const auto state = absolute("XDG_STATE_HOME"); !state.empty()) return state / "freshet";
  // Root's programs may have another user's HOME (sudo -E): a folder that root makes there would lock the user out.
  const auto home = absolute("HOME");
  struct stat facts {};
  const bool is_own = !home.empty() && ::stat(home.c_str(), &facts) == 0 && facts.st_uid == ::geteuid();
  if (is_own) return home / ".local/state/freshet";
  return {};
}

}  // namespace

Result<std::string> make_state_folder() {
  const std::filesystem::path path = state_folder_path();
  if (path.empty()) return fail(Code::not_found, "neither XDG_STATE_HOME nor HOME names a folder of this user");
  std::filesystem::path made;
  for (const std::filesystem::path& part : path) {
    made /= part;
    // A folder above that is there may refuse with another reason than that it is there.
    struct stat facts {};
    if (::stat(made.c_str(), &facts) == 0) continue;
    if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "make folder " + made.string());
  }
  return path.string();
}

}  // namespace freshet
