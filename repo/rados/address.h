// SPDX-License-Identifier: Apache-2.0
#pragma once

/// "rados://[USER@]POOL/REPOSITORY[?conf=FILE]".

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

struct RadosAddress {
  std::string pool;
  std::string repository;  ///< The namespace within the pool.
  std::string user;        ///< Ceph's user, without "client."; empty: admin.
  std::string conf_file;   ///< Empty: CEPH_CONF, or Ceph's own search.
};

bool is_rados_address(std::string_view place);
/// The message of invalid_argument names the fault.
Result<RadosAddress> parse_rados_address(std::string_view text);

}  // namespace freshet
