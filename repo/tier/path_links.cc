// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/path_links.h"

#include <sys/stat.h>
#include <unistd.h>

#include <unordered_set>
#include <vector>

#include "core/base/format.h"
#include "repo/tier/tier_folder.h"

namespace freshet::tier {
namespace {

std::string path_link_of(const std::string& tier, const std::string& path) {
  char link[kPathLinkBytes];
  return tier + "/" + std::string(link, put_path_link(link, hashed(kHashSeed, path.data(), path.size())));
}

std::string path_text_of(const Identity& identity) {
  char text[kPathTextBytes];
  return std::string(text, put_path_text(text, identity));
}

/// "" when it is no link.
std::string text_of_link(const std::string& link) {
  char text[kPathTextBytes + 1];
  const ssize_t got = ::readlink(link.c_str(), text, sizeof text);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "";
}

}  // namespace

void link_path(const std::string& tier, const std::string& path, const Identity& identity, std::uint64_t aside) {
  const std::string link = path_link_of(tier, path);
  const std::string text = path_text_of(identity);
  if (text_of_link(link) == text) return;
  const std::string unfinished = format("{}/{}copy-{}-link-{}", tier, kOwnPrefix, ::getpid(), aside);
  if (::symlink(text.c_str(), unfinished.c_str()) != 0) return;
  if (::rename(unfinished.c_str(), link.c_str()) == 0) return;
  (void)::mkdir((tier + "/" + kPathsFolder).c_str(), 0700);
  (void)::mkdir(link.substr(0, link.rfind('/')).c_str(), 0700);
  if (::rename(unfinished.c_str(), link.c_str()) != 0) (void)::unlink(unfinished.c_str());
}

void unlink_path(const std::string& tier, const std::string& path, const Identity& identity) {
  if (path.empty()) return;
  const std::string link = path_link_of(tier, path);
  if (text_of_link(link) == path_text_of(identity)) (void)::unlink(link.c_str());
}

Status mend_path_links(const std::string& tier) {
  std::unordered_set<std::uint64_t> linked;
  const std::string folder = tier + "/" + kPathsFolder;
  std::vector<std::string> parts;
  Status listed = each_name(folder, [&](const char* name) {
    if (name[0] != '.') parts.push_back(folder + "/" + name);
  });
  if (!listed && listed.error().code() != Code::not_found) return listed;
  for (const std::string& part : parts) {
    FRESHET_TRY(each_name(part, [&](const char* name) {
      if (name[0] == '.') return;
      const std::string link = part + "/" + name;
      const std::string text = text_of_link(link);
      Identity identity;
      struct stat copy {};
      if (!take_path_text(text.data(), text.data() + text.size(), identity) ||
          ::lstat(copy_path(tier, identity).c_str(), &copy) != 0) {
        (void)::unlink(link.c_str());
      } else {
        linked.insert(identity_key(identity));
      }
    }));
  }
  std::uint64_t aside = 0;
  return each_copy(tier, [&](const Identity& identity, std::uint64_t, bool sound) {
    if (!sound || linked.contains(identity_key(identity))) return;
    const std::string path = source_of_copy(tier, identity);
    if (!path.empty()) link_path(tier, path, identity, ++aside);
  });
}

}  // namespace freshet::tier
