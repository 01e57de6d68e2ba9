// SPDX-License-Identifier: Apache-2.0
/// What answers where Freshet was built without librados.

#include "repo/rados/rados_store.h"

namespace freshet {

Result<std::shared_ptr<RadosStore>> open_rados_store(const RadosAddress&) {
  return fail(Code::unsupported, "this build has no Ceph RADOS: it was built without librados-dev");
}

}  // namespace freshet
