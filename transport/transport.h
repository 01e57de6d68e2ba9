// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Transport brings bytes and news from the training process to the serving processes. It does not store versions.
///
/// Two entries, for the two sides:
///   1. publisher.h: copies tensors into an arena, turns them into versions in the background, and serves them.
///   2. subscriber.h: hears of versions, maps what changed, swaps whole versions in, and hands out snapshots.
///
/// Behind these two, in reading order:
///   3. protocol/: the protocol between the two sides, as state machines. They take messages and a time, and return
///      actions. They do no I/O, so the simulator in tests/transport/sim drives the same code that the shells run.
///      transport/WIRE.md describes the protocol as prose.
///   4. arena/: the memory of versions. publish/: the copy that blocks the loop, and the steps after it. subscribe/:
///      the loop that follows a model, the fetches, and the readers' pins.
///   5. channel/: brings bytes over UCX or ZeroMQ if memory cannot be shared. source/: answers the fetches.
///   6. directory/, redis/: how processes find each other, and the current version. security/: admission.
///   7. group/: the ranks of one job: how they meet, agree, and notice that one is gone.
///   8. zmq/, shm/: the shells that carry the machines' actions out. file/: folders that trainers and engines exchange.

#include "transport/publisher.h"
#include "transport/subscriber.h"
