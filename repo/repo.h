// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where versions rest. A repository stores each version's manifest, and each segment once, under the name of the
/// version that wrote it. So a version takes the space of its changed tensors. Reading a version back costs one owner
/// map and one read per segment, however long its lineage is.
///
/// In reading order:
///   1. repository.h: put, get, read, owners, lineage, pins, verify. A put is whole and durable, or it did not happen.
///      part_puts.h: a put whose tensors several processes bring.
///      Not installed: provider_repository.h, further calls for a repository's server and for other providers.
///   2. backend.h: the interface to storage: blobs, and records that change in atomic batches. The memory backend is
///      the one to read first; RocksDB's is the one that lasts. One conformance suite runs them all.
///   3. sink.h: the subscriber that wants every version and puts each into a repository.
///   4. import.h: versions from files.
///   5. match/query.h: asks for the stored versions with the longest common prefix with an architecture.
///      match/structure_index.h answers it.
///   6. cluster/cluster_repository.h: one repository that several providers keep. cluster/protocol.h: why nothing is
///      lost between them.
///   7. serve/server.h: serves a repository to other processes and hosts.
///   8. levels/checkpointer.h: checkpoints of jobs with many ranks; levels/FORMAT.md has their shards.
///
/// repo/FORMAT.md describes the keys and the order of the durable steps.

#include "repo/backend/backend.h"
#include "repo/files/import.h"
#include "repo/levels/checkpointer.h"
#include "repo/match/query.h"
#include "repo/part_puts.h"
#include "repo/repository.h"
#include "repo/serve/server.h"
#include "repo/sink.h"
