// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The one Ceph cluster of this program's cases.

#include <map>
#include <memory>
#include <string>

#include "repo/bucket/bucket_backend.h"
#include "repo/rados/rados_store.h"
#include "tests/support/ceph_cluster.h"

namespace freshet {

/// Started when the first case needs it.
inline CephCluster& ceph() {
  static CephCluster one;
  return one;
}

inline RadosAddress a_new_place_in_ceph() {
  static int places = 0;
  return {.pool = CephCluster::kPool,
          .repository = "place-" + std::to_string(places++),
          .user = {},
          .conf_file = ceph().conf_file()};
}

inline Result<std::unique_ptr<Backend>> open_in_ceph(const RadosAddress& place, bool read_only = false) {
  FRESHET_ASSIGN(std::shared_ptr<RadosStore> store, open_rados_store(place));
  // The suite of object stores asks this cluster whether creations exclude each other.
  BucketOptions options;
  options.read_only = read_only;
  options.check_exclusion = false;
  return open_bucket_backend(std::move(store), options);
}

/// A folder's name stands for a place of its own.
inline Result<std::unique_ptr<Backend>> open_in_ceph(const std::string& folder) {
  static std::map<std::string, RadosAddress> places;
  const auto known = places.find(folder);
  return open_in_ceph(known != places.end() ? known->second
                                            : places.emplace(folder, a_new_place_in_ceph()).first->second);
}

}  // namespace freshet
