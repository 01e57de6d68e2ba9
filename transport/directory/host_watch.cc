// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_watch.h"

#include "transport/directory/host_files.h"

namespace freshet {

Result<HostWatch> HostWatch::open(const std::string& folder) {
  Result<FolderNews> news = FolderNews::open(folder, IN_MOVED_TO);
  if (!news) return fail(Code::unsupported, news.error().message());
  return HostWatch(std::move(*news));
}

bool HostWatch::take(const std::string& model) {
  const std::string entry = model + std::string(host_files::kEntrySuffix);
  const std::string current = model + std::string(host_files::kCurrentSuffix);
  bool concerned = false;
  (void)news_.take([&](std::uint32_t events, std::string_view name) -> Status {
    // After an overflow anything may have happened.
    concerned |=
        (events & IN_Q_OVERFLOW) != 0 || name == entry || name == current || host_files::is_server_file(name, model);
    return {};
  });
  return concerned;
}

}  // namespace freshet
