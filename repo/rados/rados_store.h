// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Objects in a pool of Ceph's RADOS, in a namespace of their own.
///
/// RADOS makes an object exclusively, in one operation with its bytes. But it lists a pool only as a whole, in no
/// order. So the store keeps an index: an object's key is in it before the object is made, until the object is removed.
/// A listing may have a key whose creation never came to its end, with 0 bytes.
///
/// Each client gives its objects their times by its own clock. now_unix_s() is the clock of the cluster.

#include <memory>

#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/rados/address.h"

namespace freshet {

/// Its signed requests have no signature: they serve processes that have a keyring of their own for the pool. They name
/// the objects that the owner has chosen.
class RadosStore : public ObjectStore, public SignedObjects {
 public:
  using ObjectStore::create;
  using ObjectStore::read;
  using SignedObjects::create;
  using SignedObjects::read;
};

/// Connects, and loads librados. Ends within 8 s where no monitor answers; within 24 s where the cluster falls silent
/// after its first answer. Errors, besides those of every call of a store:
///   unsupported: a build without RADOS; an older repository is there, which this version does not read.
///   unavailable: this machine has no librados; no monitor answers.
///   failed_precondition: there is no ceph.conf, no keyring, or no such pool; the cluster refuses the key.
Result<std::shared_ptr<RadosStore>> open_rados_store(const RadosAddress& address);

}  // namespace freshet
