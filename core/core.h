// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of a version, and the interfaces that all rooms share. Core includes no other room. It opens no socket and
/// no file without a caller's request.
///
/// In reading order:
///   1. ids.h: names. MODEL@V for people, (run, incarnation, sequence) for versions, that plus a tensor for a segment.
///   2. dtype.h, tensor.h, memory_kind.h: element types, specifications, views over bytes that belong to somebody else,
///      and the kind of memory that the bytes lie in.
///   3. graph.h: an architecture, a graph of leaf-layer calls, and the slot id of each call.
///   4. manifest.h: a version: its architecture, its owner map (for each tensor, the version that wrote its bytes),
///      digests.
///   5. slab.h, arena.h: how a process holds versions: sealed memory that a neighbour may map, and the records of which
///      part of the memory may be written again.
///   6. digest.h: content digests (XXH3-128). slot_id.h: identity hashes (BLAKE2b).
///   7. delta/element_delta.h: turns one tensor's payload into the next, and back, if few elements changed.
///   8. safetensors.h: versions as files.
///   9. result.h, check.h, clock.h, mutex.h, interruption.h: failure as a value, broken invariants, replaceable time,
///      locks that the compiler can reason about, waits that end when the caller asks for it.
///
/// Programs outside the tree use the files that are included here. Others that they need (layout.h, env.h, slot_id.h)
/// come with the headers of other rooms.
///
/// core/FORMAT.md describes the encoded forms.

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/interruption.h"
#include "core/base/log.h"
#include "core/base/result.h"
#include "core/model/dtype.h"
#include "core/model/graph.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"
#include "core/safetensors/safetensors.h"
