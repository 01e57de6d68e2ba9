// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/address.h"

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

constexpr std::string_view kScheme = "rados://";
constexpr std::string_view kConf = "conf=";

/// Names travel to the cluster as C strings, and into messages.
bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= 128 &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
             std::string_view::npos;
}

}  // namespace

bool is_rados_address(std::string_view place) { return place.starts_with(kScheme); }

Result<RadosAddress> parse_rados_address(std::string_view text) {
  const auto refuse = [&](std::string_view what) {
    return fail(Code::invalid_argument,
                format("{}: {}; a repository in Ceph is rados://[USER@]POOL/NAME[?conf=FILE]", shown(text), what));
  };
  if (!is_rados_address(text)) return refuse("another scheme");
  RadosAddress address;
  std::string_view rest = text.substr(kScheme.size());
  if (const auto question = rest.find('?'); question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with(kConf) || query.size() == kConf.size()) return refuse("only ?conf=FILE is known");
    address.conf_file = query.substr(kConf.size());
    rest = rest.substr(0, question);
  }
  if (const auto at = rest.find('@'); at != std::string_view::npos) {
    if (!is_plain(rest.substr(0, at))) return refuse("its user has no good name");
    address.user = rest.substr(0, at);
    rest = rest.substr(at + 1);
  }
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos) return refuse("it names no repository within the pool");
  if (!is_plain(rest.substr(0, slash))) return refuse("its pool has no good name");
  if (!is_plain(rest.substr(slash + 1))) return refuse("its repository has no good name");
  address.pool = rest.substr(0, slash);
  address.repository = rest.substr(slash + 1);
  return address;
}

}  // namespace freshet
