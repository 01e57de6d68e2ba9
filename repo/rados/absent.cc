// SPDX-License-Identifier: Apache-2.0
/// What answers where Freshet was built without librados.

#include "repo/backend/backend.h"

namespace freshet {

Result<std::unique_ptr<Backend>> open_rados_backend(const RadosOptions&) {
  return fail(Code::unsupported, "this build has no Ceph RADOS: it was built without librados-dev");
}

}  // namespace freshet
