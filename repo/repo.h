// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where versions rest. A repository stores each segment once, under the name of the version that wrote it, and for
/// each version its manifest; so a version costs what it changed, and reading one back costs one owner map and one read
/// per segment, however long its lineage is.
///
/// In reading order:
///   1. repository.h: put, get, read, owners, lineage, pins, verify. A put is whole and durable, or it did not happen.
///   2. backend.h: the seam for storage: blobs, and records that change in atomic batches. The memory backend is the
///   one to
///      read first; RocksDB's is the one that lasts. One conformance suite runs them all.
///   3. sink.h: the subscriber that wants every version and puts each into a repository.
///   4. import.h: versions from files.
///   5. match/query.h: which stored versions share the longest prefix with an architecture; match/structure_index.h
///      answers it.
///   6. cluster/cluster_repository.h: one repository that several providers keep; cluster/protocol.h says why nothing
///   is
///      lost between them.
///   7. levels/checkpointer.h: checkpoints of jobs with many ranks; levels/FORMAT.md has their shards.
///
/// The keys and the order of the durable steps are described in repo/FORMAT.md.

#include "repo/backend.h"
#include "repo/import.h"
#include "repo/levels/checkpointer.h"
#include "repo/match/query.h"
#include "repo/match/structure_index.h"
#include "repo/repository.h"
#include "repo/sink.h"
