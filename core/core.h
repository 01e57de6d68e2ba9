// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a version is, and the seams that everyone shares. Core knows no other room, opens no socket and no file of its
/// own.
///
/// In reading order:
///   1. ids.h: names. MODEL@V for people, (run, incarnation, sequence) for versions, that plus a tensor for a segment.
///   2. dtype.h, tensor.h: element types, specifications, and views over bytes that belong to somebody else.
///   3. graph.h: an architecture, a graph of leaf-layer calls, and the slot id of each call.
///   4. manifest.h: a version: its architecture, its owner map (for each tensor, who wrote its bytes), digests.
///   5. slab.h, arena.h: how a process holds versions: sealed memory that a neighbour may map, and the books that say
///   which
///      part of it may be written again.
///   6. digest.h: content digests (XXH3-128) and identity hashes (BLAKE2b).
///   7. delta/element_delta.h: what turns one tensor's payload into the next, and back, when few elements changed.
///   8. safetensors.h: versions as files.
///   9. result.h, check.h, clock.h, mutex.h: failure as a value, broken invariants, time as a seam, locks that the
///   compiler
///      can reason about.
///
/// The encoded forms are described in core/FORMAT.md.

#include "core/arena.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/delta/element_delta.h"
#include "core/digest.h"
#include "core/dtype.h"
#include "core/graph.h"
#include "core/ids.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/mutex.h"
#include "core/result.h"
#include "core/safetensors.h"
#include "core/slab.h"
#include "core/tensor.h"
