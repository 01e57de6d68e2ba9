// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The one Ceph cluster of this program's cases.

#include <string>

#include "repo/backend/backend.h"
#include "tests/support/ceph_cluster.h"

namespace freshet {

/// Started when the first case needs it.
inline CephCluster& ceph() {
  static CephCluster one;
  return one;
}

/// A folder's name stands for a repository of its own.
inline RadosOptions rados_options_for(const std::string& folder) {
  std::string name;
  for (const char c : folder) name.push_back(c == '/' ? '.' : c);
  RadosOptions options;
  options.pool = CephCluster::kPool;
  options.repository = name;
  options.conf_file = ceph().conf_file();
  return options;
}

}  // namespace freshet
