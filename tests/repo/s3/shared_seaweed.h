// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The one object store of this program's cases.

#include <map>
#include <string>

#include "repo/s3/address.h"
#include "tests/support/seaweed_server.h"
#include "tests/support/variable_env.h"

namespace freshet {

/// Started when the first case needs it; one for all cases of this process.
inline SeaweedServer& seaweed() {
  static SeaweedServer one;
  return one;
}

inline std::map<std::string, std::string> variables_of(const s3::Credentials& credentials) {
  return {{"AWS_ACCESS_KEY_ID", credentials.access_key_id}, {"AWS_SECRET_ACCESS_KEY", credentials.secret_access_key}};
}
inline const VariableEnv kOwnerKeys = VariableEnv::with(variables_of(SeaweedServer::owner()));
inline const VariableEnv kReaderKeys = VariableEnv::with(variables_of(SeaweedServer::reader()));

inline S3Address a_new_place() {
  static int places = 0;
  return {.bucket = SeaweedServer::kBucket,
          .prefix = "tests/place-" + std::to_string(places++),
          .endpoint = seaweed().endpoint(),
          .region = {}};
}

}  // namespace freshet
