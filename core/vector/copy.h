// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Copying tensors into slabs. A plain memcpy into memory that the processor will not read again soon reads every cache
/// line of the destination before it overwrites it; streaming stores do not, and a third of the traffic is saved. The
/// digest comes nearly for nothing on the way: each piece is stored a second time, into a buffer that stays in the
/// first level cache, and digested from there, so the source is read once and the destination never.

#include "core/base/digest.h"
#include "core/model/tensor.h"
#include "core/vector/level.h"

namespace freshet {

/// Copies `from` to `to` and returns the digest of what was written (also when somebody changes `from` meanwhile). The
/// written bytes are visible to a thread that learns of them through a release of the calling thread. REQUIRES: equal
/// sizes, no overlap.
Digest copy_and_digest(MutableBytes to, Bytes from);
Digest copy_and_digest(MutableBytes to, Bytes from, VectorLevel level);
/// The same of bytes that come in pieces: what was written is added to `digest`.
void copy_and_digest(MutableBytes to, Bytes from, DigestStream& digest, VectorLevel level);

}  // namespace freshet
